//! The arguments of the attribute.

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Expr, ExprLit, Ident, Lit, LitInt, LitStr, Token};

use crate::time::Time;

const SHORTEST_LEASE: Duration = Duration::from_millis(50);
const LONGEST_LEASE: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

const KINDS: [&str; 7] = [
    "reentrant",
    "fair",
    "fenced",
    "spin",
    "plain",
    "read",
    "write",
];

/// The arguments, each valid by itself and in combination with the others.
pub(crate) struct Arguments {
    client: Expr,
    name: Expr,
    /// One of [`KINDS`].
    kind: &'static str,
    lease: Option<Time>,
    owner: Option<Expr>,
    attempts: Option<u32>,
    pub(crate) limit: Option<Limit>,
    /// The name by which the body refers to the guard.
    pub(crate) guard: Option<Ident>,
}

/// When to give up, and what the function returns then.
pub(crate) struct Limit {
    wait: Option<Time>,
    pub(crate) busy: Expr,
}

impl Arguments {
    /// Returns an expression that makes the lock.
    pub(crate) fn lock(&self) -> TokenStream {
        let here = Span::mixed_site();
        let name = name(&self.name);
        let made = match self.kind {
            "fair" => quote_spanned!(here=> client.fair_lock(#name)),
            "fenced" => quote_spanned!(here=> client.fenced_lock(#name)),
            "spin" => quote_spanned!(here=> client.spin_lock(#name)),
            "plain" => quote_spanned!(here=> client.plain_lock(#name)),
            "read" => quote_spanned!(here=> client.read_write_lock(#name).reader()),
            "write" => quote_spanned!(here=> client.read_write_lock(#name).writer()),
            _ => quote_spanned!(here=> client.lock(#name)),
        };
        let attempts = self
            .attempts
            .map(|n| quote_spanned!(here=> .max_attempts(#n)));
        let lease = self.lease.map(|lease| {
            let lease = lease.tokens();
            quote_spanned!(here=> .lease(#lease))
        });
        let client = borrowed(
            &self.client,
            quote_spanned!(here=> client: &::redlatch::Client),
        );
        let owner = self.owner.as_ref().map(|owner| {
            let owner = borrowed(owner, quote_spanned!(here=> owner: &::redlatch::Owner));
            (owner, quote_spanned!(here=> .owned_by(owner)))
        });
        let (owner, owned) = owner.unzip();
        quote_spanned!(here=> {
            #client
            let lock = #made #attempts #lease;
            #owner
            lock #owned
        })
    }
}

impl Limit {
    /// Returns an expression for how long to wait: without limit if `wait` is not given.
    pub(crate) fn wait(&self) -> TokenStream {
        self.wait
            .map_or_else(|| quote!(::core::time::Duration::MAX), Time::tokens)
    }
}

/// Binds a reference to the result of an expression, which may be a value, a reference or a smart pointer. This takes
/// two steps: in a single one, the wanted type would be expected of each part of the expression. A compile error points
/// at the expression.
fn borrowed(expression: &Expr, bound: TokenStream) -> TokenStream {
    let here = Span::mixed_site();
    let there = expression.span().resolved_at(here);
    let given = quote_spanned!(there=> given);
    quote_spanned!(here=>
        let given = &(#expression);
        let #bound = #given;
    )
}

/// Returns an expression for the name. A literal is a format string whose placeholders are names in the function; any
/// other expression is the name.
fn name(name: &Expr) -> TokenStream {
    match text(name) {
        Some(literal) if literal.value().contains(['{', '}']) => {
            quote!(::std::format!(#literal))
        }
        _ => name.to_token_stream(),
    }
}

fn text(expression: &Expr) -> Option<&LitStr> {
    match expression {
        Expr::Lit(ExprLit {
            lit: Lit::Str(literal),
            ..
        }) => Some(literal),
        _ => None,
    }
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut client = Once::default();
        let mut name = Once::default();
        let mut kind = Once::default();
        let mut lease = Once::default();
        let mut wait = Once::default();
        let mut busy = Once::default();
        let mut owner = Once::default();
        let mut attempts = Once::default();
        let mut guard = Once::default();

        while !input.is_empty() {
            if !input.peek(Ident::peek_any) {
                let wanted = "`locked` takes its arguments by name: `client = .., name = \"..\"`";
                return Err(input.error(wanted));
            }
            let key = input.call(Ident::parse_any)?;
            match key.to_string().as_str() {
                "client" => client.take(key, input, Expr::parse)?,
                "name" => name.take(key, input, parse_name)?,
                "kind" => kind.take(key, input, parse_kind)?,
                "lease" => lease.take(key, input, parse_lease)?,
                "wait" => wait.take(key, input, Time::parse)?,
                "busy" => busy.take(key, input, Expr::parse)?,
                "owner" => owner.take(key, input, Expr::parse)?,
                "attempts" => attempts.take(key, input, parse_attempts)?,
                "guard" => guard.take(key, input, Ident::parse)?,
                _ => {
                    let known = "no argument of `locked`, which has client, name, kind, lease, wait, busy, owner, \
                                 attempts and guard";
                    return Err(syn::Error::new(key.span(), known));
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }

        let kind = kind.value().unwrap_or("reentrant");
        if let Some(key) = attempts.key().filter(|_| kind != "spin") {
            let wanted = "only a lock that asks again and again counts its attempts: `kind = spin`";
            return Err(syn::Error::new(key.span(), wanted));
        }
        let limited = wait.key().or(attempts.key());
        match (limited, busy.key()) {
            (Some(key), None) => {
                let wanted = format!(
                    "`{key}` needs `busy = ..`, what the function returns if it does not get the lock"
                );
                return Err(syn::Error::new(key.span(), wanted));
            }
            (None, Some(key)) => {
                let wanted = "`busy` needs `wait = \"..\"`: without it the function waits for as long as it takes";
                return Err(syn::Error::new(key.span(), wanted));
            }
            _ => {}
        }
        Ok(Self {
            client: client.needed("`locked` needs `client = ..`, a `redlatch::Client`")?,
            name: name.needed("`locked` needs `name = \"..\"`, the name of the lock")?,
            kind,
            lease: lease.value(),
            owner: owner.value(),
            attempts: attempts.value(),
            limit: busy.value().map(|busy| Limit {
                wait: wait.value(),
                busy,
            }),
            guard: guard.value(),
        })
    }
}

/// An argument that may be given at most once.
struct Once<T>(Option<(Ident, T)>);

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Once<T> {
    fn take(
        &mut self,
        key: Ident,
        input: ParseStream<'_>,
        value: impl FnOnce(ParseStream<'_>) -> syn::Result<T>,
    ) -> syn::Result<()> {
        if self.0.is_some() {
            let twice = format!("`{key}` is given twice");
            return Err(syn::Error::new(key.span(), twice));
        }
        input.parse::<Token![=]>()?;
        self.0 = Some((key, value(input)?));
        Ok(())
    }

    fn key(&self) -> Option<&Ident> {
        self.0.as_ref().map(|(key, _)| key)
    }

    fn value(self) -> Option<T> {
        self.0.map(|(_, value)| value)
    }

    fn needed(self, missing: &str) -> syn::Result<T> {
        self.value()
            .ok_or_else(|| syn::Error::new(Span::call_site(), missing))
    }
}

fn parse_name(input: ParseStream<'_>) -> syn::Result<Expr> {
    let name: Expr = input.parse()?;
    match text(&name) {
        Some(literal) if literal.value().is_empty() => {
            Err(syn::Error::new(literal.span(), "a lock needs a name"))
        }
        _ => Ok(name),
    }
}

fn parse_kind(input: ParseStream<'_>) -> syn::Result<&'static str> {
    let there = input.span();
    let kind: Option<Ident> = input.parse()?;
    KINDS
        .into_iter()
        .find(|known| kind.as_ref().is_some_and(|kind| kind == known))
        .ok_or_else(|| {
            let wanted = format!("no kind of lock; one of {}", KINDS.join(", "));
            syn::Error::new(there, wanted)
        })
}

fn parse_lease(input: ParseStream<'_>) -> syn::Result<Time> {
    let there = input.span();
    let lease: Time = input.parse()?;
    if (SHORTEST_LEASE..=LONGEST_LEASE).contains(&lease.get()) {
        Ok(lease)
    } else {
        let wanted = "a lease must last from 50 ms to 100 years";
        Err(syn::Error::new(there, wanted))
    }
}

fn parse_attempts(input: ParseStream<'_>) -> syn::Result<u32> {
    let literal: LitInt = input.parse()?;
    match literal.base10_parse()? {
        0 => Err(syn::Error::new(
            literal.span(),
            "a call makes at least one attempt",
        )),
        attempts => Ok(attempts),
    }
}
