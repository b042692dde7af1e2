//! The function below the attribute, and its expansion.

use proc_macro2::{Group, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::visit_mut::{VisitMut, visit_type_mut};
use syn::{Attribute, ReturnType, Signature, Token, Type, TypeInfer, Visibility};

use crate::arguments::Arguments;

/// Returns the function under its lock. On an error, returns the error together with the unchanged function, so that
/// the function's callers do not fail to compile too.
pub(crate) fn locked(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let made = syn::parse2::<Function>(item.clone())
        .and_then(|function| Ok(function.under(&syn::parse2(arguments)?)));
    made.unwrap_or_else(|error| {
        let error = error.into_compile_error();
        quote!(#error #[allow(unused)] #item)
    })
}

/// An async function with a body, which is not parsed.
struct Function {
    attributes: Vec<Attribute>,
    visibility: Visibility,
    signature: Signature,
    returned: Type,
    body: Group,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        let signature: Signature = input.parse()?;
        if signature.asyncness.is_none() {
            let wanted = "`locked` stands on an `async fn`";
            return Err(syn::Error::new(signature.fn_token.span, wanted));
        }
        if input.peek(Token![;]) {
            let wanted = "`locked` stands on a function with a body";
            return Err(syn::Error::new(signature.ident.span(), wanted));
        }
        let ReturnType::Type(_, returned) = &signature.output else {
            let wanted = "a locked function returns a `Result`, whose error can be made from a `redlatch::Error`: it \
                          tells when the lock cannot be had, or was lost";
            return Err(syn::Error::new(signature.ident.span(), wanted));
        };
        Ok(Self {
            attributes,
            visibility,
            returned: (**returned).clone(),
            signature,
            body: input.parse()?,
        })
    }
}

impl Function {
    /// Puts the function under its lock. The variables of the code around the body have their own hygiene, so the body
    /// does not see them, and the expressions in the arguments see those of the function.
    fn under(mut self, arguments: &Arguments) -> TokenStream {
        // A type of the form `impl ..` cannot be written in a body, and does not have to be.
        Erased.visit_type_mut(&mut self.returned);
        let Self {
            attributes,
            visibility,
            signature,
            returned,
            body,
        } = self;
        let here = Span::mixed_site();
        // The compile error for an error type that cannot be made from a `redlatch::Error` points here.
        let there = returned.span().resolved_at(here);
        let failed = quote_spanned!(there=> ::redlatch::__locked::Outcome::failed(error));
        let released =
            quote_spanned!(there=> ::redlatch::__locked::Outcome::released(outcome, released));
        let lock = arguments.lock();
        let acquired = match &arguments.limit {
            None => quote_spanned!(here=> match lock.lock().await {
                ::core::result::Result::Ok(guard) => guard,
                ::core::result::Result::Err(error) => return #failed,
            }),
            Some(limit) => {
                let (wait, busy) = (limit.wait(), &limit.busy);
                quote_spanned!(here=> match lock.try_lock_for(#wait).await {
                    ::core::result::Result::Ok(::core::option::Option::Some(guard)) => guard,
                    ::core::result::Result::Ok(::core::option::Option::None) => return #busy,
                    ::core::result::Result::Err(error) => return #failed,
                })
            }
        };
        let bound = arguments
            .guard
            .as_ref()
            .map(|guard| quote_spanned!(here=> let #guard = &guard;));
        quote_spanned! {here=>
            #(#attributes)*
            #visibility #signature {
                let lock = #lock;
                let guard = #acquired;
                let outcome = {
                    #bound
                    // Pinned here, since a future that is passed on by value takes up its space twice.
                    let body = ::core::pin::pin!(async move {
                        // Tells the compiler the return type of the block, which `return` and `?` in it need.
                        if let ::core::option::Option::Some(never) = ::redlatch::__locked::never::<#returned>() {
                            return never;
                        }
                        #body
                    });
                    guard.run_until_lost(body).await
                };
                match outcome {
                    ::core::result::Result::Ok(outcome) => {
                        let released = guard.unlock().await;
                        #released
                    }
                    ::core::result::Result::Err(error) => #failed,
                }
            }
        }
    }
}

/// Replaces each `impl ..` by `_`, so that it is inferred.
struct Erased;

impl VisitMut for Erased {
    fn visit_type_mut(&mut self, ty: &mut Type) {
        if matches!(ty, Type::ImplTrait(_)) {
            *ty = Type::Infer(TypeInfer {
                underscore_token: Token![_](ty.span()),
            });
        } else {
            visit_type_mut(self, ty);
        }
    }
}
