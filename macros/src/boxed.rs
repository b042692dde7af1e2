//! A function that returns its future in a box, as `async_trait` makes one of each async function.

use syn::parse::{Parse, ParseStream};
use syn::{
    Expr, ExprAsync, GenericArgument, Local, LocalInit, Path, PathArguments, Stmt, Token, Type,
    TypeParamBound, braced, parenthesized,
};

/// Returns the type of what the future brings, if this is a `Pin<Box<dyn Future<Output = ..> ..>>`.
pub(crate) fn output(returned: &Type) -> Option<&Type> {
    let future = argument(argument(returned, "Pin")?, "Box")?;
    let Type::TraitObject(future) = future else {
        return None;
    };
    let future = future.bounds.iter().find_map(|bound| match bound {
        TypeParamBound::Trait(bound) => arguments(&bound.path, "Future"),
        _ => None,
    });
    future?.find_map(|argument| match argument {
        GenericArgument::AssocType(ty) if ty.ident == "Output" => Some(&ty.ty),
        _ => None,
    })
}

/// Returns the type in the angle brackets, if this is a type of that name.
fn argument<'a>(ty: &'a Type, name: &str) -> Option<&'a Type> {
    let Type::Path(ty) = ty else {
        return None;
    };
    arguments(&ty.path, name)?.find_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    })
}

fn arguments<'a>(
    path: &'a Path,
    name: &str,
) -> Option<impl Iterator<Item = &'a GenericArgument> + use<'a>> {
    let last = path.segments.last().filter(|last| last.ident == name)?;
    match &last.arguments {
        PathArguments::AngleBracketed(given) => Some(given.args.iter()),
        _ => None,
    }
}

/// The body of such a function: `{ Box::pin(async move { .. }) }`.
pub(crate) struct Boxed {
    pub(crate) pin: Path,
    /// What `async_trait` puts first: parameters get the patterns that the user gave them.
    pub(crate) parameters: Vec<Stmt>,
    pub(crate) body: Vec<Stmt>,
}

impl Parse for Boxed {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let body;
        braced!(body in input);
        let there = body.span();
        let (pin, future) = boxed(&body).map_err(|_| {
            let wanted = "a locked function is an `async fn`, or its body is `Box::pin(async move { .. })` alone: \
                          anything else would run without the lock";
            syn::Error::new(there, wanted)
        })?;
        let mut parameters = future.block.stmts;
        let begun = parameters
            .iter()
            .position(|first| !is_never(first) && !is_name(first));
        // The last statement is what the function returns.
        let rest = parameters.split_off(begun.unwrap_or(parameters.len().saturating_sub(1)));
        // The name that the body has for `self` stays there, so that the arguments of the attribute have `self`.
        let (parameters, mut body): (Vec<_>, Vec<_>) = parameters
            .into_iter()
            .partition(|first| is_name(first) && !is_self(first));
        body.extend(rest);
        Ok(Self {
            pin,
            parameters,
            body,
        })
    }
}

/// Parses `Box::pin(async move { .. })`, and nothing else.
fn boxed(body: ParseStream<'_>) -> syn::Result<(Path, ExprAsync)> {
    let pin = body.parse()?;
    let future;
    parenthesized!(future in body);
    let block: ExprAsync = future.parse()?;
    future.parse::<Option<Token![,]>>()?;
    match block.capture.is_some() && future.is_empty() && body.is_empty() {
        true => Ok((pin, block)),
        false => Err(body.error("nothing else")),
    }
}

/// Whether the statement only names a value that has another name, so that it may as well come before the lock.
fn is_name(statement: &Stmt) -> bool {
    let value = match statement {
        Stmt::Local(Local {
            init:
                Some(LocalInit {
                    expr,
                    diverge: None,
                    ..
                }),
            ..
        }) => expr,
        Stmt::Expr(value, None) => value,
        _ => return false,
    };
    match value {
        Expr::Path(_) => true,
        Expr::Block(block) => block.block.stmts.iter().all(is_name),
        _ => false,
    }
}

fn is_self(statement: &Stmt) -> bool {
    matches!(statement, Stmt::Local(Local { init: Some(init), .. }) if is_path(&init.expr, "self"))
}

/// Whether the statement is `if let .. = None::<..> { .. }`, by which the compiler learns a type.
fn is_never(statement: &Stmt) -> bool {
    match statement {
        Stmt::Expr(Expr::If(never), None) => {
            matches!(&*never.cond, Expr::Let(some) if is_path(&some.expr, "None"))
        }
        _ => false,
    }
}

fn is_path(expression: &Expr, name: &str) -> bool {
    let Expr::Path(path) = expression else {
        return false;
    };
    path.path
        .segments
        .last()
        .is_some_and(|last| last.ident == name)
}
