//! The glue that the page `other_traits` of tickwheel shows, compiled, and run by the tests beside it.

#![allow(missing_docs, reason = "the page shows it as it is written down in a program")]

#[path = "../../src/docs/other_traits/aws_smithy_async.rs"]
pub mod aws_smithy_async;
#[path = "../../src/docs/other_traits/backon.rs"]
pub mod backon;
#[path = "../../src/docs/other_traits/quinn.rs"]
pub mod quinn;
#[path = "../../src/docs/other_traits/tower.rs"]
pub mod tower;
