//! A browser without a window, driven by the `WebDriver` protocol through `chromedriver`: HTTP with JSON, a connection for each call.

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::until;
use crate::example::example;

/// Under this name the protocol has the number of an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

/// Returns why there is no browser. `None`: there is one.
pub(crate) fn missing() -> Option<String> {
    let lacks = |name: &&&str| {
        !env::split_paths(&env::var_os("PATH").unwrap_or_default())
            .any(|folder| folder.join(name).is_file())
    };
    let missing: Vec<_> = ["chromium", "chromedriver"].iter().filter(lacks).copied().collect();
    (!missing.is_empty()).then(|| {
        format!(
            "not installed: {} (Debian: `apt-get install chromium chromium-driver`)",
            missing.join(", ")
        )
    })
}

impl Browser {
    pub(crate) fn start() -> Browser {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .spawn()
            .expect("chromedriver starts");
        // It says on which port it listens.
        let mut lines = BufReader::new(driver.stdout.take().expect("its output")).lines();
        let port = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        std::thread::spawn(move || lines.for_each(drop)); // so that it can go on writing
        let mut browser =
            Browser { driver, port: port.expect("it tells its port"), session: String::new() };
        // Its sandbox does not work for root, and shared memory is small in containers.
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--force-color-profile=srgb",
            "--host-resolver-rules=MAP shop.test 127.0.0.1",
        ];
        let answer = browser.call(
            "POST",
            "/session",
            &json!({"capabilities": {"alwaysMatch": {
                "browserName": "chrome",
                "unhandledPromptBehavior": "ignore",
                "goog:chromeOptions": {"args": arguments},
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }}}),
        );
        let answer = answer.unwrap_or_else(|problem| panic!("chromium does not start: {problem}"));
        answer["sessionId"].as_str().expect("a session").clone_into(&mut browser.session);
        browser
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let answer =
            request(self.port, method, path, &[], &body).map_err(|error| error.to_string())?.1;
        let answer: Value = serde_json::from_slice(&answer).map_err(|error| error.to_string())?;
        match answer["value"]["error"].as_str() {
            Some(error) => Err(format!("{error}: {}", answer["value"]["message"])),
            None => Ok(answer["value"].clone()),
        }
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let path = format!("/session/{}{path}", self.session);
        self.call(method, &path, body)
            .unwrap_or_else(|problem| panic!("{method} {path} {body}: {problem}"))
    }

    pub(crate) fn open(&self, address: &str) {
        self.ask("POST", "/url", &json!({"url": address}));
    }

    pub(crate) fn address(&self) -> String {
        self.ask("GET", "/url", &Value::Null).as_str().expect("an address").to_owned()
    }

    /// Returns the numbers of the elements of a selector of CSS.
    fn elements(&self, selector: &str) -> Vec<String> {
        let found =
            self.ask("POST", "/elements", &json!({"using": "css selector", "value": selector}));
        found
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|of| Some(of[ELEMENT].as_str()?.to_owned()))
            .collect()
    }

    pub(crate) fn count(&self, selector: &str) -> usize {
        self.elements(selector).len()
    }

    fn element(&self, selector: &str) -> String {
        self.elements(selector)
            .into_iter()
            .next()
            .unwrap_or_else(|| panic!("no {selector} in {}", self.text()))
    }

    pub(crate) fn click(&self, selector: &str) {
        self.ask("POST", &format!("/element/{}/click", self.element(selector)), &json!({}));
    }

    pub(crate) fn write(&self, selector: &str, text: &str) {
        let element = self.element(selector);
        self.ask("POST", &format!("/element/{element}/clear"), &json!({}));
        self.ask("POST", &format!("/element/{element}/value"), &json!({"text": text}));
    }

    /// Returns what a person reads.
    pub(crate) fn text(&self) -> String {
        self.run("return document.body.innerText").as_str().expect("a text").to_owned()
    }

    pub(crate) fn run(&self, script: &str) -> Value {
        self.ask("POST", "/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Makes the window so many pixels wide and high, light or dark.
    pub(crate) fn look(&self, width: u32, height: u32, scheme: &str) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.ask(
            "POST",
            "/goog/cdp/execute",
            &json!({"cmd": "Emulation.setDeviceMetricsOverride", "params": size}),
        );
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.ask(
            "POST",
            "/goog/cdp/execute",
            &json!({"cmd": "Emulation.setEmulatedMedia", "params": media}),
        );
    }

    /// Switches scripts of pages on or off; those of `run` work all the same.
    pub(crate) fn scripts(&self, are_on: bool) {
        let params = json!({"value": !are_on});
        self.ask(
            "POST",
            "/goog/cdp/execute",
            &json!({"cmd": "Emulation.setScriptExecutionDisabled", "params": params}),
        );
    }

    /// Returns what the browser has to complain about since the last call.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.ask("POST", "/se/log", &json!({"type": "browser"}));
        log.as_array().expect("a list").iter().map(|entry| entry["message"].to_string()).collect()
    }

    /// Returns the addresses that it has asked for since the last call.
    pub(crate) fn requests(&self) -> Vec<String> {
        let log = self.ask("POST", "/se/log", &json!({"type": "performance"}));
        let messages = log.as_array().expect("a list").iter().filter_map(|entry| {
            let message: Value = serde_json::from_str(entry["message"].as_str()?).ok()?;
            let is_request = message["message"]["method"] == "Network.requestWillBeSent";
            let address = message["message"]["params"]["request"]["url"].as_str()?.to_owned();
            is_request.then_some(address)
        });
        messages.collect()
    }

    /// Returns true if a window of the browser asks something, as `alert` does.
    pub(crate) fn has_dialog(&self) -> bool {
        self.call("GET", &format!("/session/{}/alert/text", self.session), &Value::Null).is_ok()
    }

    /// Returns a picture of what is to be seen, as a file in PNG.
    pub(crate) fn picture(&self) -> Vec<u8> {
        let picture = self.ask("GET", "/screenshot", &Value::Null);
        decode(picture.as_str().expect("a picture"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Which ends the browser too.
        _ = self.call("DELETE", &format!("/session/{}", self.session), &Value::Null);
        _ = self.driver.kill();
        _ = self.driver.wait();
    }
}

/// Asks a server on this machine by HTTP, and returns the status and the body.
pub(crate) fn request(
    port: u16,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> io::Result<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n")?;
    for (name, value) in headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    write!(stream, "Content-Length: {}\r\n\r\n{body}", body.len())?;
    let mut reader = BufReader::new(stream);
    let (mut status, mut length, mut line) = (0, None, String::new());
    while reader.read_line(&mut line)? > 2 {
        let lower = line.to_ascii_lowercase();
        if let Some(version) = lower.strip_prefix("http/1.1 ") {
            status = version
                .split(' ')
                .next()
                .and_then(|status| status.trim().parse().ok())
                .unwrap_or(0);
        } else if let Some(bytes) = lower.strip_prefix("content-length:") {
            length = bytes.trim().parse().ok();
        }
        line.clear();
    }
    let mut answer = Vec::new();
    match length {
        Some(length) => reader.take(length).read_to_end(&mut answer)?,
        None => reader.read_to_end(&mut answer)?,
    };
    Ok((status, answer))
}

fn decode(base64: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(u32::from(byte - b'A')),
        b'a'..=b'z' => Some(u32::from(byte - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(byte - b'0') + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0, 0);
    for digit in base64.bytes().filter_map(digit) {
        (bits, count) = (bits << 6 | digit, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

/// The example service, as a new user starts it.
pub(crate) struct Service {
    process: Child,
    pub(crate) port: u16,
    pub(crate) token: String,
}

impl Service {
    pub(crate) fn start(path: &str, options: &[&str]) -> Service {
        let mut process = Command::new(example("service"))
            .args(["--port", "0"])
            .args(options)
            .arg(path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example starts");
        let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        let mut of = |name: &str| {
            let found = lines.by_ref().map_while(Result::ok).find(|line| line.starts_with(name));
            found.expect("it tells").trim_start_matches(name).trim().to_owned()
        };
        let page = of("the page:");
        let token = of("the token:");
        std::thread::spawn(move || lines.for_each(drop));
        let port = page.trim_end_matches('/').rsplit(':').next().and_then(|port| port.parse().ok());
        Service { process, port: port.expect("a port"), token }
    }

    pub(crate) fn page(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Elsewhere its `Drop` ends it.
    #[cfg(not(unix))]
    pub(crate) fn interrupt(self) -> bool {
        true
    }

    /// Stops it as Ctrl-C does, and returns true if it says that it has ended well.
    #[cfg(unix)]
    pub(crate) fn interrupt(mut self) -> bool {
        let kill = Command::new("kill").args(["-INT", &self.process.id().to_string()]).status();
        assert!(kill.expect("kill runs").success());
        let mut status = None;
        until("the service ends", || {
            status = self.process.try_wait().expect("its state");
            status.is_some()
        });
        status.is_some_and(|status| status.success())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
