//! The way of a request: who asks ([`Guard::admit`]), what for, and the answer with its headers.
//!
//! - SERVICE-1 A `GET` changes nothing. What changes something is a `POST` that [`Guard::objection`] has let pass, and leads back to
//!   a view by a redirect, so that a reload repeats nothing.
//! - SERVICE-2 Each answer has the headers of `HEADERS`: nothing is kept by caches, framed by others, or loaded from elsewhere.
//!   The one script and the one style are known by their hashes, so no other text is run, even if it should come into the page
//!   unescaped.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use bytes::{Buf, Bytes};
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION,
    REFERRER_POLICY, SET_COOKIE, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use sha2::{Digest, Sha256};
use tickwheel_durable::Timers;
use tower_service::Service;

use crate::access::{Guard, Login, SHORTEST_SECRET, Visitor, hex};
use crate::action::{Action, SAID, Said};
use crate::html::Html;
use crate::link::Query;
use crate::sight::{self, Failed, Sight};
use crate::views::{self, Frame, View};

/// The most bytes of a form. A key of a thousand bytes takes three times as many.
const LONGEST_FORM: usize = 64 * 1024;

/// On each answer (SERVICE-2). The policy of what is loaded is beside them, because it has the hashes.
const HEADERS: [(HeaderName, &str); 5] = [
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (CACHE_CONTROL, "no-store"),
    // Without a referrer, browsers send `Origin: null` with forms.
    (REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
        base64(&Sha256::digest(views::STYLE)),
        base64(&Sha256::digest(views::SCRIPT)),
    )
});

/// A page of timers, for operators: a service to mount into a service of yours.
///
/// It implements [`tower_service::Service`], so axum takes it by `route_service` or `nest_service`, and hyper by
/// `hyper_util::service::TowerToHyperService`. Below which path it is mounted is the same to it. A clone is a handle of the same
/// page. See the [crate's first page](crate).
///
/// ```
/// use axum::Router;
/// use tickwheel_durable::Timers;
/// use tickwheel_durable_web::{Page, random_token};
///
/// let timers = Timers::open("sqlite::memory:")?;
/// let page = Page::with_token(&timers, &random_token())?.title("Shop").build();
/// let service: Router = Router::new().route_service("/operators/timers", page);
/// # drop(service);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Page {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    guard: Guard,
    sight: Sight,
    settings: Settings,
}

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) title: String,
    pub(crate) is_read_only: bool,
    pub(crate) refresh: Duration,
}

impl Page {
    /// Makes a page that whoever knows the token may see. People give it in the form of the page, and a program as
    /// `Authorization: Bearer token`.
    ///
    /// The token is a secret of 16 bytes or more that nobody can guess, such as a [`random_token`](crate::random_token) from your
    /// configuration. White space around it does not count. All processes that serve the page under one address have the same. Use TLS
    /// wherever others can listen.
    ///
    /// # Errors
    ///
    /// [`ShortSecret`]: the token has fewer bytes, without white space around it.
    pub fn with_token(timers: &Timers, token: &str) -> Result<PageBuilder, ShortSecret> {
        let token = token.trim(); // as what is given: files and variables often end with a line end
        PageBuilder::new(timers, token.as_bytes(), Guard::of_token(token))
    }

    /// Makes a page whose visitors your own authentication knows. The hook gets the head of each request, before anything else is
    /// done with it, and returns who sends it. With `None` nothing is shown.
    ///
    /// The hook is called in the thread of the request, so it should not wait. If your authentication asks a database, put it in
    /// front as a layer, and let the hook read what the layer has put into the extensions.
    ///
    /// The secret binds the forms of the page to their visitor. It has 16 bytes or more, and is the same in all processes that serve
    /// the page under one address.
    ///
    /// ```
    /// use tickwheel_durable::Timers;
    /// use tickwheel_durable_web::{Page, Visitor, random_token};
    ///
    /// #[derive(Clone)]
    /// struct User { name: String, is_admin: bool } // a layer of yours puts it there
    ///
    /// let timers = Timers::open("sqlite::memory:")?;
    /// let page = Page::with_hook(&timers, random_token(), |request| {
    ///     let user = request.extensions.get::<User>()?;
    ///     Some(if user.is_admin { Visitor::operator(&*user.name) } else { Visitor::reader(&*user.name) })
    /// })?;
    /// # drop(page.build());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ShortSecret`]: the secret has fewer bytes.
    pub fn with_hook(
        timers: &Timers,
        secret: impl AsRef<[u8]>,
        hook: impl Fn(&Parts) -> Option<Visitor> + Send + Sync + 'static,
    ) -> Result<PageBuilder, ShortSecret> {
        let secret = secret.as_ref();
        PageBuilder::new(timers, secret, Guard::of_hook(secret, Box::new(hook)))
    }

    /// Answers a request. [`Service::call`] does the same.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: http_body::Body<Data: Buf, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send,
    {
        let (request, body) = request.into_parts();
        let now = SystemTime::now();
        // Nothing is looked at before it is known who asks (ACCESS-1).
        let login = self.shared.guard.admit(&request, now);
        let query = Query::parse(request.uri.query().unwrap_or_default().as_bytes());
        let visit = Visit { shared: &self.shared, request: &request, query: &query, login };
        let reply = match (request.method.clone(), &visit.login) {
            (Method::GET | Method::HEAD, Some(_)) => visit.show().await,
            (Method::GET | Method::HEAD, None) => visit.locked(None, visit.query),
            (Method::POST, _) => match Limited::new(body, LONGEST_FORM).collect().await {
                Ok(form) => visit.act(&Query::parse(&form.to_bytes()), now).await,
                Err(_) => visit.problem(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "The form is too long, or did not come in whole.",
                ),
            },
            _ => visit.problem(StatusCode::METHOD_NOT_ALLOWED, "This page knows GET and POST."),
        };
        reply.into_response(request.method == Method::HEAD)
    }
}

/// How a page is to be. [`build`](PageBuilder::build) makes it.
#[derive(Debug)]
#[must_use = "it does nothing until it is built"]
pub struct PageBuilder {
    shared: Shared,
}

impl PageBuilder {
    fn new(timers: &Timers, secret: &[u8], guard: Guard) -> Result<PageBuilder, ShortSecret> {
        if secret.len() < SHORTEST_SECRET {
            return Err(ShortSecret { bytes: secret.len() });
        }
        let refresh = Duration::from_secs(5);
        let settings = Settings { title: "Timers".to_owned(), is_read_only: false, refresh };
        Ok(PageBuilder { shared: Shared { guard, sight: Sight::new(timers), settings } })
    }

    /// Sets the name of the page, such as that of your service. By default it is `Timers`.
    pub fn title(mut self, title: impl Into<String>) -> PageBuilder {
        self.shared.settings.title = title.into();
        self
    }

    /// Makes a page that shows, and on which nobody can change anything.
    pub fn read_only(mut self) -> PageBuilder {
        self.shared.settings.is_read_only = true;
        self
    }

    /// Sets how long the counts, and the runs of the last hour, are shown before they are read anew; by default two seconds. They
    /// read whole tables, so they are always shown for at least ten times as long as it took to read them, and all visitors share
    /// them.
    pub fn counts_every(mut self, keep: Duration) -> PageBuilder {
        self.shared.sight.keep(keep);
        self
    }

    /// Sets how often a browser with scripts asks for what it shows again; by default each five seconds, and less often than that if
    /// the database is slow. With zero it does not.
    pub fn refresh_every(mut self, refresh: Duration) -> PageBuilder {
        self.shared.settings.refresh = refresh;
        self
    }

    /// Makes the page.
    pub fn build(self) -> Page {
        Page { shared: Arc::new(self.shared) }
    }
}

/// A token, or a secret, that could be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShortSecret {
    /// So many bytes it has.
    pub bytes: usize,
}

impl fmt::Display for ShortSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes;
        write!(
            f,
            "the token, or secret, has {bytes} bytes: give {SHORTEST_SECRET} or more that nobody can guess, such as those of `random_token`"
        )
    }
}

impl std::error::Error for ShortSecret {}

/// Returns 32 random hexadecimal digits, for a token.
///
/// # Panics
///
/// If the system has no random numbers.
pub fn random_token() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    hex(&bytes)
}

/// An answer before it has its headers.
pub(crate) struct Reply {
    status: StatusCode,
    page: Html,
    header: Option<(HeaderName, String)>,
    cookie: Option<String>,
}

impl Reply {
    fn of(status: StatusCode, page: Html) -> Reply {
        Reply { status, page, header: None, cookie: None }
    }

    /// Leads to a view, which the browser then asks for (SERVICE-1).
    fn to(query: &Query) -> Reply {
        let header = Some((LOCATION, query.link()));
        Reply { status: StatusCode::SEE_OTHER, page: Html::default(), header, cookie: None }
    }

    fn into_response(self, is_head: bool) -> Response<Full<Bytes>> {
        let page = if is_head { String::new() } else { self.page.into_string() };
        let mut response = Response::new(Full::from(page));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        for (name, value) in HEADERS {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        let of_this = [(CONTENT_SECURITY_POLICY, POLICY.clone())].into_iter();
        let cookie = self.cookie.map(|cookie| (SET_COOKIE, cookie));
        for (name, value) in of_this.chain(self.header).chain(cookie) {
            headers.insert(name, HeaderValue::try_from(value).expect("all of them are ASCII"));
        }
        response
    }
}

/// One request of somebody.
struct Visit<'a> {
    shared: &'a Shared,
    request: &'a Parts,
    query: &'a Query,
    login: Option<Login>,
}

impl Visit<'_> {
    fn may_act(&self) -> bool {
        let may = self.login.as_ref().is_some_and(|login| login.visitor.may_act);
        may && !self.shared.settings.is_read_only
    }

    fn frame(&self) -> Frame<'_> {
        let Shared { settings, .. } = self.shared;
        let is_sharded = self.shared.sight.is_sharded();
        let login = self.login.as_ref();
        Frame { settings, query: self.query, login, may_act: self.may_act(), is_sharded }
    }

    async fn show(&self) -> Reply {
        let Some(view) = View::of(self.query.get("view").unwrap_or_default()) else {
            return self.problem(StatusCode::NOT_FOUND, "There is no such view.");
        };
        let begin = Instant::now();
        match views::show(view, &self.frame(), &self.shared.sight).await {
            Ok(view) => {
                let status = if view.is_there { StatusCode::OK } else { StatusCode::NOT_FOUND };
                // As SIGHT-1: a visitor's refresh takes at most a tenth of the time.
                let refresh = self.shared.settings.refresh;
                let every =
                    if refresh.is_zero() { refresh } else { refresh.max(10 * begin.elapsed()) };
                Reply::of(status, self.frame().whole(view, every))
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Asks who it is, and shows nothing else.
    fn locked(&self, wrong: Option<&str>, back: &Query) -> Reply {
        let frame = self.frame();
        if !self.shared.guard.has_login() {
            return Reply::of(StatusCode::FORBIDDEN, frame.problem("You may not see this page."));
        }
        let mut reply = Reply::of(StatusCode::UNAUTHORIZED, frame.login(wrong, back));
        reply.header = Some((WWW_AUTHENTICATE, "Bearer".to_owned()));
        reply
    }

    async fn act(&self, form: &Query, now: SystemTime) -> Reply {
        let Shared { guard, .. } = self.shared;
        let Some(action) = self.query.get("do").and_then(Action::of) else {
            return match self.login {
                Some(_) => self.problem(StatusCode::NOT_FOUND, "There is no such action."),
                None => self.locked(None, self.query),
            };
        };
        // It leads to this page whatever it says (QUERY-1).
        let back = form.get("back").unwrap_or_default();
        let back = Query::parse(back.trim_start_matches('?').as_bytes()).without(&SAID);
        if self.login.is_none() && action != Action::Login {
            let words =
                "You are not logged in any more, so nothing was changed. Log in, and do it again.";
            return self.locked(Some(words), &back);
        }
        if let Some(objection) =
            guard.objection(self.request, self.login.as_ref(), form.get("form"))
        {
            return self.problem(StatusCode::FORBIDDEN, objection);
        }
        match action {
            Action::Login if !guard.has_login() => self.locked(None, &back),
            Action::Login if !guard.is_token(form.get("token").unwrap_or_default().trim()) => {
                self.locked(Some("This is not the token."), &back)
            }
            Action::Login => {
                Reply { cookie: Some(guard.login(self.request, now)), ..Reply::to(&back) }
            }
            Action::Logout => {
                let cookie = Some(guard.logout(self.request));
                Reply { cookie, ..Reply::to(&Query::default()) }
            }
            _ if !self.may_act() => {
                self.problem(StatusCode::FORBIDDEN, "You may look here, and change nothing.")
            }
            _ => {
                match self.run(action, form).await {
                    Ok(said) => {
                        // The page of a timer that was cancelled has nothing to show any more.
                        let is_gone = action == Action::Cancel
                            && back.get("view") == Some(View::Timer.name());
                        let kind = self.query.get("kind").filter(|_| is_gone);
                        let to = kind.map_or(back, |kind| {
                            Query::new(View::Overview.name()).with("kind", kind)
                        });
                        Reply::to(&to.with("said", said.name).with_some("count", said.count))
                    }
                    Err(error) => self.failed(&error),
                }
            }
        }
    }

    async fn run(&self, action: Action, form: &Query) -> sight::Result<Said> {
        let timers = self.shared.sight.timers_of(self.query)?;
        Ok(action.run(timers, self.query, form).await?)
    }

    /// Says what the database says, which an operator wants to know. It has no password in it.
    fn failed(&self, error: &Failed) -> Reply {
        let status = if error.is_invalid {
            StatusCode::BAD_REQUEST
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        self.problem(status, &error.words)
    }

    fn problem(&self, status: StatusCode, problem: &str) -> Reply {
        let mut reply = Reply::of(status, self.frame().problem(problem));
        if status == StatusCode::METHOD_NOT_ALLOWED {
            reply.header = Some((ALLOW, "GET, HEAD, POST".to_owned()));
        }
        reply
    }
}

impl<B> Service<Request<B>> for Page
where
    B: http_body::Body<Data: Buf + Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let page = self.clone();
        Box::pin(async move { Ok(page.answer(request).await) })
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk
            .iter()
            .chain(&[0; 2])
            .take(3)
            .fold(0, |bits, byte| bits << 8 | usize::from(*byte));
        for digit in 0..4 {
            let is_there = digit <= chunk.len();
            text.push(if is_there {
                char::from(DIGITS[bits >> (18 - 6 * digit) & 63])
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use http_body_util::Empty;
    use tickwheel_durable::NewTimer;
    use tokio::runtime::Runtime;

    use super::*;

    const TOKEN: &str = "a token of 30 characters, or so";

    /// Each view and each action that there is, because a new one comes into these lists (ACCESS-1).
    #[test]
    fn no_view_and_no_action_is_reached_without_a_login() {
        let timers = Timers::open("sqlite::memory:").expect("it opens");
        let hour = Duration::from_secs(3600);
        timers
            .schedule(&NewTimer::new("a kind", "a key", hour).payload("needle"))
            .expect("it is put in");
        let by_token = Page::with_token(&timers, TOKEN).expect("long enough").build();
        let by_hook = Page::with_hook(&timers, TOKEN, |_| None).expect("long enough").build();
        let runtime = Runtime::new().expect("a runtime");
        let of = "kind=a+kind&key=a+key";
        let views =
            View::ALL.map(|view| (Method::GET, format!("/?view={}&{of}&do=cancel", view.name())));
        let actions =
            Action::ALL.map(|action| (Method::POST, format!("/?do={}&{of}", action.name())));
        let all: Vec<_> = views.into_iter().chain(actions).collect();
        for page in [&by_token, &by_hook] {
            for (method, link) in &all {
                for (name, value) in [
                    ("host", "h"),
                    ("authorization", "Bearer of a wrong token"),
                    ("cookie", "tickwheel_00000000=1.2"),
                ] {
                    // It comes from the page's own origin, so that this is not what it is refused for.
                    let request = Request::builder().method(method).uri(link).header(name, value);
                    let request = request.header("sec-fetch-site", "same-origin");
                    let request = request.body(Empty::<Bytes>::new()).expect("a request");
                    let (head, body) = runtime.block_on(page.answer(request)).into_parts();
                    let body = runtime.block_on(body.collect()).expect("a body").to_bytes();
                    let body = String::from_utf8(body.to_vec()).expect("a text");
                    let is_locked =
                        [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&head.status);
                    assert!(is_locked && !head.headers.contains_key(SET_COOKIE), "{method} {link}");
                    assert!(
                        !body.contains("needle") && !body.contains("<table"),
                        "{method} {link}"
                    );
                }
            }
        }
        assert!(timers.get("a kind", "a key").expect("an answer").is_some());
        // With the token each of the views is there.
        for (method, link) in all.iter().filter(|(method, _)| method == Method::GET) {
            let request = Request::builder()
                .method(method)
                .uri(link)
                .header("authorization", format!("Bearer {TOKEN}"));
            let request = request.body(Empty::<Bytes>::new()).expect("a request");
            assert_eq!(
                runtime.block_on(by_token.answer(request)).status(),
                StatusCode::OK,
                "{link}"
            );
        }
    }

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
