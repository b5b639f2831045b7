//! Somebody who asks the page, as far as a browser shows in requests.

use axum::Router;
use axum::body::Body;
use http::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST as HOST_NAME, HeaderMap, ORIGIN};
use http::request::Builder;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use tickwheel_durable::Timers;
use tickwheel_durable_web::{Page, PageBuilder};
use tower_service::Service;

pub(crate) const TOKEN: &str = "a token of 30 characters, or so";
pub(crate) const HOST: &str = "shop.example:8080";

pub(crate) fn page_of(timers: &Timers) -> PageBuilder {
    Page::with_token(timers, TOKEN).expect("long enough")
}

pub(crate) struct Client {
    pub(crate) router: Router,
    path: String,
    pub(crate) cookie: Option<String>,
    /// Of the forms.
    pub(crate) code: Option<String>,
    pub(crate) origin: Option<String>,
    pub(crate) site: Option<String>,
    pub(crate) user: Option<String>,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Client {
    /// One that is logged in, if there is a login.
    pub(crate) fn new(page: Page) -> Client {
        let mut client = Client::locked(Router::new().route_service("/", page), "/");
        client.post("?do=login", &[("token", TOKEN)]);
        client.code = Client::code_of(&client.get("").body);
        client
    }

    pub(crate) fn locked(router: Router, path: &str) -> Client {
        let origin = Some(format!("http://{HOST}"));
        Client {
            router,
            path: path.to_owned(),
            cookie: None,
            code: None,
            origin,
            site: None,
            user: None,
        }
    }

    /// The code of the first form of a page.
    pub(crate) fn code_of(body: &str) -> Option<String> {
        let (_, rest) = body.split_once("name=\"form\" value=\"")?;
        Some(rest.split('"').next()?.to_owned())
    }

    pub(crate) fn get(&mut self, query: &str) -> Answer {
        self.ask(Request::builder(), query)
    }

    pub(crate) fn ask(&mut self, request: Builder, query: &str) -> Answer {
        self.request(request, query, String::new())
    }

    pub(crate) fn bearer(&mut self, method: Method, query: &str, token: &str) -> Answer {
        let origin = self.origin.take();
        let request =
            Request::builder().method(method).header(AUTHORIZATION, format!("Bearer {token}"));
        let answer = self.ask(request, query);
        self.origin = origin;
        answer
    }

    /// Sends a form, with the code.
    pub(crate) fn post(&mut self, query: &str, fields: &[(&str, &str)]) -> Answer {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.extend_pairs(fields);
        if let Some(code) = &self.code {
            form.append_pair("form", code);
        }
        let request = Request::builder().method(Method::POST);
        self.request(
            request.header(CONTENT_TYPE, "application/x-www-form-urlencoded"),
            query,
            form.finish(),
        )
    }

    pub(crate) fn send(&mut self, form: &Form) -> Answer {
        let code = self.code.take(); // the form has one of its own
        let fields: Vec<_> = form.fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        let answer = self.post(&form.action, &fields);
        self.code = code;
        answer
    }

    /// Sends a form without fields, and returns what the view says to which it leads.
    pub(crate) fn said(&mut self, query: &str) -> String {
        let answer = self.post(query, &[]);
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.body);
        let said =
            answer.header("location").split("said=").nth(1).expect("it says something").to_owned();
        said.split('&').next().unwrap_or_default().to_owned()
    }

    fn request(&mut self, request: Builder, query: &str, body: String) -> Answer {
        let mut request = request.uri(format!("{}{query}", self.path)).header(HOST_NAME, HOST);
        let is_post = request.method_ref() == Some(&Method::POST);
        for (name, value) in [
            (COOKIE.as_str(), &self.cookie),
            ("sec-fetch-site", &self.site),
            ("x-user", &self.user),
            (ORIGIN.as_str(), &self.origin.clone().filter(|_| is_post)),
        ] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        let request = request.body(Body::from(body)).expect("a request");
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let answer = runtime.block_on(async {
            let Ok(answer) = self.router.call(request).await;
            let (head, body) = answer.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            let body = String::from_utf8(body.to_vec()).expect("a text");
            Answer { status: head.status, headers: head.headers, body }
        });
        if let Some(cookie) =
            answer.headers.get("set-cookie").and_then(|cookie| cookie.to_str().ok())
        {
            self.cookie = cookie.split(';').next().map(str::to_owned);
        }
        answer
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Returns true if the page has this text, as it stands in HTML.
    pub(crate) fn has(&self, text: &str) -> bool {
        self.body.contains(text)
    }

    /// Fails if the page has a tag or an attribute that is not of its source.
    pub(crate) fn assert_harmless(&self) {
        let mut rest = &self.body[..];
        while let Some(begin) = rest.find('<') {
            rest = &rest[begin..];
            // What stands between quotes may have anything but a quote.
            let mut is_quoted = false;
            let end = rest.find(|c| {
                is_quoted ^= c == '"';
                c == '>' && !is_quoted
            });
            let tag = &rest[..=end.expect("a tag ends")];
            let name = tag[1..]
                .trim_start_matches('/')
                .split(|c: char| !c.is_ascii_alphanumeric())
                .next()
                .unwrap_or_default();
            assert!(TAGS.contains(&name) || tag == "<!DOCTYPE html>", "{tag}");
            for (index, part) in tag.split('"').enumerate() {
                let attribute = part.trim_end_matches('=').rsplit(' ').next().unwrap_or_default();
                assert!(index % 2 == 1 || !attribute.starts_with("on"), "{tag}");
                assert!(index % 2 == 1 || !part.contains('\''), "{tag}");
            }
            rest = &rest[tag.len()..];
            if ["script", "style"].contains(&name) && !tag.starts_with("</") {
                let text = rest.find(&format!("</{name}>")).expect("it ends");
                assert!(!rest[..text].contains("hacked"));
                rest = &rest[text..];
            }
        }
        assert!(
            !self.body.contains('\u{202e}') || !texts(&self.body).contains('\u{202e}'),
            "it turns texts around"
        );
    }
}

/// All that the page has.
const TAGS: [&str; 46] = [
    "html",
    "head",
    "meta",
    "title",
    "link",
    "style",
    "body",
    "header",
    "h1",
    "h2",
    "nav",
    "a",
    "form",
    "input",
    "button",
    "select",
    "option",
    "label",
    "div",
    "main",
    "p",
    "b",
    "small",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "bdi",
    "span",
    "time",
    "dl",
    "dt",
    "dd",
    "pre",
    "code",
    "figure",
    "figcaption",
    "svg",
    "g",
    "path",
    "text",
    "desc",
    "footer",
    "script",
];

/// What stands outside of tags.
fn texts(body: &str) -> String {
    body.split('<').filter_map(|part| part.split_once('>')).map(|(_, text)| text).collect()
}

/// Returns true if an answer tells nothing of any timer.
pub(crate) fn locked(answer: &Answer) -> bool {
    // The links back have what was asked for.
    let texts = texts(&answer.body);
    let is_refused = !answer.status.is_success() && !answer.status.is_redirection();
    is_refused && !texts.contains("needle") && !texts.contains("mail")
}

fn unescaped(value: &str) -> String {
    value
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&#39;", "'")
        .replace("&amp;", "&")
}

/// The links of a page.
pub(crate) fn links(body: &str) -> Vec<String> {
    body.split(" href=\"")
        .skip(1)
        .map(|rest| unescaped(rest.split('"').next().unwrap_or_default()))
        .collect()
}

/// A form, as the browser would send it.
pub(crate) struct Form {
    action: String,
    fields: Vec<(String, String)>,
}

impl Form {
    /// The first form whose address has this in it.
    pub(crate) fn of(body: &str, address: &str) -> Option<Form> {
        let forms = body
            .split("<form ")
            .skip(1)
            .map(|form| form.split("</form>").next().unwrap_or_default());
        let value = |tag: &str, name: &str| {
            let (_, rest) = tag.split_once(&format!("{name}=\""))?;
            Some(unescaped(rest.split('"').next()?))
        };
        forms.into_iter().find_map(|form| {
            let action = value(form, "action").filter(|action| action.contains(address))?;
            let inputs = form
                .split("<input ")
                .skip(1)
                .map(|input| input.split('>').next().unwrap_or_default());
            let fields = inputs
                .filter_map(|input| Some((value(input, "name")?, value(input, "value")?)))
                .collect();
            Some(Form { action, fields })
        })
    }
}
