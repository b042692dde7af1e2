//! Every example as a module of one program, which shows that all of them compile. Each by itself would be linked with
//! all that it needs.
#![allow(dead_code, reason = "compiling is the test")]

macro_rules! examples {
    ($($name:ident)*) => {
        $(mod $name;)*

        const EXAMPLES: &[&str] = &[$(stringify!($name)),*];
    };
}

examples! {
    deployments failover fair in_memory items latch leader locked_fn long_job metrics mocked multi nested no_scripts
    pitfalls read_write redlock request_id rotating_password schedule semaphore spin two_processes verify_or_fence wait_timeout
}

#[test]
fn every_example_is_compiled() {
    let manifest = include_str!("Cargo.toml");
    let examples = manifest.split("[[example]]\nname = \"").skip(1);
    let listed: Vec<&str> = examples.filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(EXAMPLES, listed);
}
