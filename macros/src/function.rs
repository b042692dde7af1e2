//! The function below the attribute, and its expansion.

use proc_macro2::{Group, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::visit_mut::{VisitMut, visit_type_mut};
use syn::{Attribute, Path, ReturnType, Signature, Stmt, Token, Type, Visibility};

use crate::arguments::Arguments;
use crate::boxed::{self, Boxed};

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

/// An async function, or one that returns its future in a box.
struct Function {
    attributes: Vec<Attribute>,
    visibility: Visibility,
    signature: Signature,
    /// What the future brings.
    returned: Type,
    /// What boxes the future, unless this is an `async fn`.
    pin: Option<Path>,
    /// The statements that name the parameters, if the signature does not.
    parameters: Vec<Stmt>,
    body: TokenStream,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        if input.peek(Token![impl]) || input.peek(Token![trait]) {
            return Err(input.error("`locked` stands on each function that it is for"));
        }
        let visibility = input.parse()?;
        if input.peek(Token![struct]) || input.peek(Token![enum]) || input.peek(Token![mod]) {
            return Err(input.error("`locked` stands on an `async fn`"));
        }
        let signature: Signature = input.parse()?;
        let returned = match &signature.output {
            ReturnType::Type(_, returned) => Some(&**returned),
            ReturnType::Default => None,
        };
        let is_async = signature.asyncness.is_some();
        let boxed = returned.and_then(boxed::output).filter(|_| !is_async);
        if !is_async && boxed.is_none() {
            let wanted = "`locked` stands on an `async fn`";
            return Err(syn::Error::new(signature.fn_token.span, wanted));
        }
        if input.peek(Token![;]) {
            let wanted = "`locked` stands on a function with a body";
            return Err(syn::Error::new(signature.ident.span(), wanted));
        }
        let Some(returned) = boxed.or(returned).filter(|it| !is_unit(it)) else {
            let wanted = "a locked function returns a `Result`, whose error can be made from a `redlatch::Error`: it \
                          tells when the lock cannot be had, or was lost";
            return Err(syn::Error::new(signature.ident.span(), wanted));
        };
        let returned = returned.clone();
        let (pin, parameters, body) = match is_async {
            true => (None, Vec::new(), unbraced(input.parse()?)),
            false => {
                let Boxed {
                    pin,
                    parameters,
                    body,
                } = input.parse()?;
                (Some(pin), parameters, quote!(#(#body)*))
            }
        };
        Ok(Self {
            attributes,
            visibility,
            signature,
            returned,
            pin,
            parameters,
            body,
        })
    }
}

/// Returns a block whose braces the compiler does not take for the user's: around a body of one line it would warn that
/// they are superfluous.
fn unbraced(mut block: Group) -> TokenStream {
    block.set_span(block.span().resolved_at(Span::mixed_site()));
    block.into_token_stream()
}

fn is_unit(ty: &Type) -> bool {
    matches!(ty, Type::Tuple(tuple) if tuple.elems.is_empty())
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
            pin,
            parameters,
            body,
        } = self;
        let here = Span::mixed_site();
        // Tells the compiler the return type of a block, which `return` and `?` in it need.
        let typed = quote_spanned! {here=>
            if let ::core::option::Option::Some(never) = ::redlatch::__locked::never::<#returned>() {
                return never;
            }
        };
        // The compile error for an error type that cannot be made from a `redlatch::Error` points here.
        let there = returned.span().resolved_at(here);
        let failed = quote_spanned!(there=> ::redlatch::__locked::Outcome::failed(error));
        let released =
            quote_spanned!(there=> ::redlatch::__locked::Outcome::released(outcome, released));
        let lock = arguments.lock();
        let acquired = acquired(arguments, &failed);
        let bound = arguments
            .guard
            .as_ref()
            .map(|guard| quote_spanned!(here=> let #guard = &guard;));
        let under_lock = quote_spanned! {here=>
            let lock = #lock;
            let guard = #acquired;
            let outcome = {
                #bound
                // Pinned here, since a future that is passed on by value takes up its space twice.
                let body = ::core::pin::pin!(async move { #typed #body });
                guard.run_until_lost(body).await
            };
            match outcome {
                ::core::result::Result::Ok(outcome) => {
                    let released = guard.unlock().await;
                    #released
                }
                ::core::result::Result::Err(error) => #failed,
            }
        };
        let body = match pin {
            None => under_lock,
            Some(pin) => {
                quote_spanned!(here=> #pin(async move { #typed #(#parameters)* #under_lock }))
            }
        };
        quote!(#(#attributes)* #visibility #signature { #body })
    }
}

/// Returns an expression for the guard, which returns from the function if there is none.
fn acquired(arguments: &Arguments, failed: &TokenStream) -> TokenStream {
    let here = Span::mixed_site();
    match &arguments.limit {
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
    }
}

/// Replaces each `impl ..` by `_`, so that it is inferred.
struct Erased;

impl VisitMut for Erased {
    fn visit_type_mut(&mut self, ty: &mut Type) {
        if matches!(ty, Type::ImplTrait(_)) {
            *ty = Type::Verbatim(quote_spanned!(ty.span()=> _));
        } else {
            visit_type_mut(self, ty);
        }
    }
}
