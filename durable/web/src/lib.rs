#![doc = include_str!("../README.md")]
//!
//! ## Below a path, with a layer of yours
//!
//! All links and forms lead to the address of the page itself, with a query. So it does not mind below which path it is mounted, and
//! nobody has to tell it: `route_service`, `nest_service`, or behind a proxy that changes the path.
//!
//! ```
//! use axum::Router;
//! use tickwheel_durable::{AsyncTimers, Timers};
//! use tickwheel_durable_web::{Page, Visitor, random_token};
//!
//! # fn session_of(_: &http::HeaderMap) -> Option<&'static str> { None }
//! fn operators(timers: &AsyncTimers, secret: &[u8]) -> Result<Router, Box<dyn std::error::Error>> {
//!     // Whoever your own authentication knows, and what they may do.
//!     let page = Page::with_hook(timers.blocking(), secret, |request| match session_of(&request.headers)? {
//!         name @ ("ada" | "grace") => Some(Visitor::operator(name)),
//!         name => Some(Visitor::reader(name)),
//!     })?;
//!     Ok(Router::new().nest_service("/operators/timers", page.title("Shop").build()))
//! }
//! # operators(&Timers::open("sqlite::memory:")?.asynchronous(), random_token().as_bytes())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With hyper alone, [`Page::answer`] is the service:
//!
//! ```
//! # async fn one(page: tickwheel_durable_web::Page, request: http::Request<http_body_util::Empty<bytes::Bytes>>) {
//! // in `hyper::service::service_fn`
//! let response = page.answer(request).await;
//! # drop(response);
//! # }
//! ```
//!
//! ## Who may do what
//!
//! - **A page has a token or a hook**: [`Page::with_token`], [`Page::with_hook`]. There is no other way to make one. Every request is
//!   asked for it first, and is shown nothing else without it.
//! - A person gives the token in a form, and gets a cookie for twelve hours that no script can read and no other site's request
//!   carries (`HttpOnly`, `SameSite=Strict`; `Secure` if the browser speaks TLS). The cookie has no token in it. It is valid in all
//!   processes with the token, and none is valid any more when the token changes. A program sends `Authorization: Bearer token`. In
//!   an address the token does not count, because addresses are kept in logs.
//! - What changes something is a `POST` that the browser says is of this page (`Sec-Fetch-Site`, or `Origin` beside `Host`), with a code
//!   that is bound to the login. So a proxy must not change `Host`, unless browsers speak TLS to it.
//! - [`PageBuilder::read_only`] makes a page on which nobody can change anything, and [`Visitor::reader`] is a person who cannot.
//! - The cookie is for the whole host, because only so is it the same with and without a slash at the end of the path, and behind a proxy
//!   that changes the path. So the other services of this host get it too: do not share a host with those that you do not trust.
//! - To guess a token of 16 random bytes takes longer than there is time, so failed logins are not counted.
//!
//! All texts that come from timers are escaped, and characters that hide or turn texts around are shown as their numbers. A policy
//! (`Content-Security-Policy`) keeps browsers from running or loading anything but the one script and the one style of the page,
//! which they know by their hashes. The page cannot be framed, and nothing of it is cached.
//!
//! ## What it costs the database
//!
//! Nothing while nobody looks. The counts and the pace read whole tables, a third of a second for a million timers: all visitors share
//! one answer for two seconds ([`PageBuilder::counts_every`]) and for ten times as long as it took, so they take a tenth of a
//! connection at most. Lists are pages of fifty along an index, and are refreshed as seldom; they read the payloads of their fifty, and
//! what is upcoming of all kinds those of fifty of each kind.
//! To find a key quickly, name its kind too: without it, all timers are read.
//!
//! A visitor waits three seconds for a question at most, or ten for the first counts. What takes longer is not shown, and until the
//! database has answered it is asked nothing else by the page. A search through very many timers is given up after the three seconds
//! too, with advice. With PostgreSQL the page then goes on with other questions. SQLite answers one question at a time, so the next
//! waits behind the search. Reloads and searches leave three questions of each database behind at most, so a database that is slow or
//! frozen keeps no more connections busy than these, the one that counts, and those of visitors who asked at the very same time. Of
//! several databases, the others are shown in the meantime. Where counts are older than they should be, the page warns of it. A change is waited for up to half a minute; after that the page says that it is not
//! known whether it was done.
//!
//! In a SQLite file with a million timers of five kinds and 360,000 attempts of the last hour, counts and pictures took 3.0 s, so they
//! were read each half a minute. The pages of a kind and of a timer came within 1 to 16 ms, those of a kind's failed attempts
//! within 11 to 75 ms, and those of what runs or is dead of all kinds within 0.2 to 0.3 s (two cores with much other work, a SQLite that
//! was built without optimisation).
//!
//! ## Why it is as it is
//!
//! - It is a service of tower, and not a router of axum, so it fits each version of axum, and programs without axum. It has one address
//!   and eight views, for which no router is needed.
//! - Its links are queries, because a path would have to be told where the page is mounted, and because kinds and keys are free texts:
//!   `..`, an empty text and `%2F` do not survive in a path on its way through routers and proxies.
//! - Markup can only be written from literals of the source, and everything else through an escape, so there is no template in which an
//!   escape could be forgotten. Script and style are known by their hashes; a number for each answer would be one more secret to make.
//! - No session is kept. A login is a time and its code, so it needs no table and no memory, and works with several processes.
//! - The mean and the latest of each minute are drawn on a logarithmic scale, because one run that was a minute late would press all
//!   others, which were late by milliseconds, into one line.
//!
//! ## What it does not do
//!
//! It schedules nothing new, and edits no payloads. It keeps no record of who has done what: put that into your hook, or in front of
//! it. Times are UTC.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

// A request's way is told in `service.rs`, which asks `access.rs` first. `html.rs` is how everything is written.
mod access;
mod action;
mod html;
mod link;
mod picture;
mod service;
mod sight;
mod source;
mod times;
mod views;

pub use access::Visitor;
pub use service::{Page, PageBuilder, ShortSecret, random_token};
