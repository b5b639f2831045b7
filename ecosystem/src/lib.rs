//! The glue to other crates that the page `adopting` of tickwheel names, compiled, and run by the tests beside it.

#![allow(missing_docs, reason = "it is written as it would be in a program")]

pub mod aws_smithy_async;
#[path = "../../src/docs/quinn.rs"]
pub mod quinn;
pub mod tower;
