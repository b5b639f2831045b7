//! Who may see the page, and who may act: [`Visitor`], and what a request shows of itself.
//!
//! - ACCESS-1 `service.rs` asks [`Guard::admit`] once for each request, before it looks at what the request is for. There is no
//!   other way to a view or an action, and no page can be made without a guard.
//! - ACCESS-2 A secret is compared by its code of authentication (HMAC), whose comparison takes as long for each wrong one. It is
//!   never in an address: those are kept in histories and logs.
//! - ACCESS-3 A request that changes something comes from a form of this page: the browser says that it is of the same origin,
//!   and the form has a code that is bound to the login. A program with the token in `Authorization` needs neither, because no
//!   browser sends that header by itself.
//!
//! A login is a time at which it ends and a code of that time, in a cookie that scripts cannot read and that no other site's
//! request carries. Nothing is kept of it, so it is valid in each process that has the same token, and ends for all when the
//! token changes.

use std::fmt::{self, Write};
use std::time::{Duration, SystemTime};

use hmac::{Hmac, KeyInit, Mac};
use http::header::{AUTHORIZATION, COOKIE, HOST, HeaderMap, HeaderName, ORIGIN};
use http::request::Parts;
use sha2::{Digest, Sha256};

/// How long a login lasts: a day of work.
const LOGIN: Duration = Duration::from_secs(12 * 3600);

/// The fewest bytes of a token, or of the secret of a hook. Sixteen random ones are never guessed; those of a word would be.
pub(crate) const SHORTEST_SECRET: usize = 16;

/// Somebody who may see the page, as your own authentication knows them. See [`Page::with_hook`](crate::Page::with_hook).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Visitor {
    /// The name that the page shows, and to which its forms are bound. Give each person one of their own.
    pub name: String,
    /// May cancel, reset, requeue and run, and not only look.
    pub may_act: bool,
}

impl Visitor {
    /// One who may look and act.
    pub fn operator(name: impl Into<String>) -> Visitor {
        Visitor { name: name.into(), may_act: true }
    }

    /// One who may look.
    pub fn reader(name: impl Into<String>) -> Visitor {
        Visitor { name: name.into(), may_act: false }
    }
}

type Hook = dyn Fn(&Parts) -> Option<Visitor> + Send + Sync;

pub(crate) struct Guard {
    /// Of the token, or as it was given for the hook.
    secret: [u8; 32],
    /// `None`: the token decides.
    hook: Option<Box<Hook>>,
}

/// What a request was admitted as.
pub(crate) struct Login {
    pub(crate) visitor: Visitor,
    /// The code that its forms have. `None`: a program with the token, which has no forms.
    pub(crate) form: Option<String>,
    /// By the cookie, so there is something to log out of.
    pub(crate) has_cookie: bool,
}

impl Guard {
    pub(crate) fn of_token(token: &str) -> Guard {
        Guard { secret: Sha256::digest(token).into(), hook: None }
    }

    pub(crate) fn of_hook(secret: &[u8], hook: Box<Hook>) -> Guard {
        Guard { secret: Sha256::digest(secret).into(), hook: Some(hook) }
    }

    /// Returns whose request it is. `None`: nobody's who may see anything (ACCESS-1).
    pub(crate) fn admit(&self, request: &Parts, now: SystemTime) -> Option<Login> {
        if let Some(hook) = &self.hook {
            let visitor = hook(request)?;
            let form = Some(self.code("form of", &visitor.name));
            return Some(Login { visitor, form, has_cookie: false });
        }
        let visitor = Visitor::operator("");
        let given = header(&request.headers, AUTHORIZATION).and_then(|given| given.split_once(' '));
        // Other schemes are those of something in front, such as a proxy with passwords of its own.
        if let Some((_, token)) = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        {
            let is_it = self.is_token(token.trim());
            return is_it.then_some(Login { visitor, form: None, has_cookie: false });
        }
        let cookie = self.cookies(&request.headers).find(|value| self.is_login(value, now))?;
        let form = Some(self.code("form of", cookie));
        Some(Login { visitor, form, has_cookie: true })
    }

    /// Returns true if people log in by a form of the page.
    pub(crate) fn has_login(&self) -> bool {
        self.hook.is_none()
    }

    pub(crate) fn is_token(&self, given: &str) -> bool {
        // The secret is made of the token, so the right one makes the same secret. Codes of both are compared, for ACCESS-2.
        let code = Guard::of_token(given).code("token", "");
        self.hook.is_none() && self.is_code("token", "", &code)
    }

    /// Returns the cookie of a new login.
    pub(crate) fn login(&self, request: &Parts, now: SystemTime) -> String {
        let until = seconds(now) + LOGIN.as_secs();
        let code = self.code("login until", &until.to_string());
        self.cookie(request, &format!("{until}.{code}"), LOGIN)
    }

    /// Returns the cookie that ends a login.
    pub(crate) fn logout(&self, request: &Parts) -> String {
        self.cookie(request, "", Duration::ZERO)
    }

    /// The browser says in `Origin` whether it speaks TLS, whatever stands between it and this process.
    fn cookie(&self, request: &Parts, value: &str, lasts: Duration) -> String {
        let origin = header(&request.headers, ORIGIN).unwrap_or_default();
        let secure = if origin.starts_with("https:") { "; Secure" } else { "" };
        let name = self.cookie_name();
        // By default the path would be that of the request up to its last slash, and the logout would miss the cookie of a login
        // with another one, such as `/timers/` beside `/timers`.
        let lasts = lasts.as_secs();
        format!("{name}={value}; Path=/; Max-Age={lasts}; HttpOnly; SameSite=Strict{secure}")
    }

    /// Browsers share cookies among all ports of a machine, so each token has a name of its own.
    fn cookie_name(&self) -> String {
        format!("tickwheel_{}", &self.code("name", "")[..8])
    }

    fn cookies<'a>(&self, headers: &'a HeaderMap) -> impl Iterator<Item = &'a str> {
        let name = self.cookie_name();
        let all = headers.get_all(COOKIE).into_iter().filter_map(|value| value.to_str().ok());
        all.flat_map(|value| value.split(';')).filter_map(move |pair| {
            let (of, value) = pair.trim().split_once('=')?;
            (of == name).then_some(value)
        })
    }

    fn is_login(&self, cookie: &str, now: SystemTime) -> bool {
        let Some((until, code)) = cookie.split_once('.') else { return false };
        self.is_code("login until", until, code)
            && until.parse().is_ok_and(|until: u64| seconds(now) < until)
    }

    /// Returns why a request may not change anything. `None`: it may (ACCESS-3).
    pub(crate) fn objection(
        &self,
        request: &Parts,
        login: Option<&Login>,
        code: Option<&str>,
    ) -> Option<&'static str> {
        if login.is_some_and(|login| login.form.is_none()) {
            return None;
        }
        if !is_same_origin(request) {
            return Some(
                "This request does not come from this page, or a proxy has changed its headers. \
                 (The browser sends `Sec-Fetch-Site: same-origin`, or an `Origin` that names the same host as `Host`.)",
            );
        }
        let login = login?; // without one, it is the login itself
        let is_ours = match (&login.form, code) {
            (Some(right), Some(given)) => self.is_equal(right, given),
            _ => false,
        };
        (!is_ours)
            .then_some("This form is of another login. Go back, reload the page, and try again.")
    }

    fn is_equal(&self, right: &str, given: &str) -> bool {
        self.is_code("equal", right, &self.code("equal", given))
    }

    fn mac(&self, of: &str, text: &str) -> Hmac<Sha256> {
        let mut mac = Hmac::new_from_slice(&self.secret).expect("a key of any length");
        mac.update(of.as_bytes());
        mac.update(&[0]);
        mac.update(text.as_bytes());
        mac
    }

    fn code(&self, of: &str, text: &str) -> String {
        hex(&self.mac(of, text).finalize().into_bytes())
    }

    fn is_code(&self, of: &str, text: &str, code: &str) -> bool {
        let byte = |index: usize| u8::from_str_radix(code.get(index..index + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..code.len()).step_by(2).map(byte).collect();
        bytes.is_some_and(|bytes| self.mac(of, text).verify_slice(&bytes).is_ok())
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").finish_non_exhaustive() // it has a secret
    }
}

/// Returns true if the browser says that the request comes from a page of this host.
///
/// Browsers send `Sec-Fetch-Site` over TLS and to the machine itself, and `Origin` with each `POST`.
fn is_same_origin(request: &Parts) -> bool {
    let headers = &request.headers;
    if let Some(site) = header(headers, HeaderName::from_static("sec-fetch-site")) {
        return site == "same-origin";
    }
    let host = match request.uri.authority() {
        Some(authority) => Some(authority.as_str()), // HTTP/2
        None => header(headers, HOST),
    };
    let origin = header(headers, ORIGIN).and_then(|origin| origin.split_once("://"));
    matches!((origin, host), (Some((_, origin)), Some(host)) if origin.eq_ignore_ascii_case(host))
}

pub(crate) fn header(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn request(headers: &[(&str, &str)]) -> Parts {
        let request = headers
            .iter()
            .fold(Request::builder(), |request, (name, value)| request.header(*name, *value));
        request.body(()).expect("a request").into_parts().0
    }

    #[test]
    fn a_login_ends_after_twelve_hours() {
        let guard = Guard::of_token("a token of 30 characters, or so");
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let cookie = guard.login(&request(&[]), now);
        let cookie = request(&[("cookie", cookie.split(';').next().expect("a pair"))]);
        let is_in = |after: Duration| guard.admit(&cookie, now + after).is_some();
        assert!(is_in(Duration::ZERO) && is_in(Duration::from_secs(43_199)));
        assert!(!is_in(LOGIN) && !is_in(2 * LOGIN));
    }

    #[test]
    fn a_form_is_of_one_login() {
        let guard = Guard::of_token("a token of 30 characters, or so");
        let now = SystemTime::now();
        let login = |after: u64| {
            let cookie = guard.login(&request(&[]), now + Duration::from_secs(after));
            let cookie = request(&[("cookie", cookie.split(';').next().expect("a pair"))]);
            guard.admit(&cookie, now).expect("it is logged in")
        };
        let (one, other) = (login(0), login(1));
        let own = request(&[("sec-fetch-site", "same-origin")]);
        assert_eq!(guard.objection(&own, Some(&one), one.form.as_deref()), None);
        assert!(guard.objection(&own, Some(&one), other.form.as_deref()).is_some());
    }

    #[test]
    fn a_request_is_of_the_host_that_it_asks() {
        let is_own = |headers: &[(&str, &str)]| is_same_origin(&request(headers));
        assert!(is_own(&[("origin", "https://Shop.example"), ("host", "shop.example")]));
        assert!(is_own(&[
            ("sec-fetch-site", "same-origin"),
            ("origin", "https://shop.example"),
            ("host", "10.0.0.1")
        ]));
        assert!(!is_own(&[("origin", "https://shop.example"), ("host", "shop.example:444")]));
        assert!(!is_own(&[
            ("sec-fetch-site", "same-site"),
            ("origin", "https://shop.example"),
            ("host", "shop.example")
        ]));
        assert!(!is_own(&[("host", "shop.example")]) && !is_own(&[]));
    }
}
