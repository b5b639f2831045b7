//! A page.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod access;
mod action;
mod html;
mod link;
mod picture;
mod service;
mod sight;
mod times;
mod views;

pub use access::Visitor;
pub use service::{Page, PageBuilder, ShortSecret, random_token};
