//! The live page of the admin listener in a real browser: what it shows, that no key of a caller becomes markup, and what it may
//! load. The screenshots stay in target/page. Without chromium the browser's part is left out, with a notice.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::rls::{self, Client};
use crate::support::served::Served;
use crate::support::wait::{PATIENCE, until};
use crate::support::{http, tools};

const POLICY: &str = "\
domain: shop
descriptors:
  - {key: user, rate_limit: {name: per-user, requests_per_unit: 2, unit: hour}}
  - {key: watched, shadow_mode: true, rate_limit: {requests_per_unit: 1, unit: hour}}
  - {key: tenant, rate_limit: {requests_per_unit: 100000, unit: hour}}
";
/// What would run, or change the page, if it were markup.
const HOSTILE: [&str; 3] = [
    "<img src=x onerror=document.title='taken'>",
    "</td><script>document.title='taken'</script>",
    "\"><svg onload=document.title='taken'>",
];
/// How long the page has in the browser's own time, which passes faster.
const VIRTUAL_MS: u32 = 6_000;

fn ask(served: &Served, times: usize, key: &str, value: &str) {
    let mut client = Client::connect(served.at.grpc);
    for _ in 0..times {
        client.ask(rls::request("shop", &[(key, value)])).unwrap();
    }
}

fn chromium() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&folders)
        .flat_map(|folder| ["chromium", "chromium-browser", "google-chrome"].map(|name| folder.join(name)))
        .find(|path| path.is_file());
    if found.is_none() {
        tools::skip("chromium");
    }
    found
}

/// Opens the page and returns what the browser printed.
fn browse(browser: &Path, admin: SocketAddr, arguments: &[String]) -> String {
    let profile = tempfile::tempdir().unwrap();
    let mut child = Command::new(browser)
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"])
        .args(["--no-first-run", "--disable-extensions", "--disable-background-networking", "--window-size=1200,1500"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--virtual-time-budget={VIRTUAL_MS}"))
        .args(arguments)
        .arg(format!("http://{admin}/"))
        .stdin(Stdio::null())
        .stdout(fs::File::create(profile.path().join("out")).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + 4 * PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("chromium did not end");
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    fs::read_to_string(profile.path().join("out")).unwrap()
}

#[test]
fn a_browser_shows_who_is_limited_and_no_key_is_markup() {
    let Some(browser) = chromium() else { return };
    let directory = tempfile::tempdir().unwrap();
    let overlay = directory.path().join("o.overlay.yaml");
    fs::write(&overlay, "overlays: [{domain: shop, descriptors: [usr], on_error: deny}]").unwrap();
    let served = Served::start(POLICY, &[&format!("policies.overlay={}", overlay.display())]);
    for (number, value) in HOSTILE.iter().enumerate() {
        ask(&served, 4 + number, "user", value);
    }
    ask(&served, 30, "user", "bob");
    ask(&served, 5, "watched", "eve");
    ask(&served, 50, "tenant", "acme");
    // A step of the history is drawn when it is over.
    until("the denials in a step that is over", PATIENCE, || {
        ask(&served, 5, "user", "bob");
        let answer: serde_json::Value =
            serde_json::from_str(&http::get(served.at.admin, "/top").unwrap().body).unwrap();
        let history = answer["limits"][0]["history"].as_array()?.clone();
        let (_, over) = history.split_last()?;
        over.iter().any(|count| count.as_u64() > Some(0)).then_some(())
    });
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/page");
    fs::create_dir_all(&target).unwrap();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let name = host.trim();
    let dom = browse(&browser, served.at.admin, &["--dump-dom".to_owned()]);
    for expected in [
        "data-state=\"shown\"",
        &format!("<title>weir {name}</title>"),
        &format!("<dd id=\"instance\">{name}</dd>"),
        &format!("<dd id=\"version\">{}</dd>", env!("CARGO_PKG_VERSION")),
        "denials by shop user (per-user)",
        "shop watched (f3600s) (shadow)",
        "memory answers",
        "<dd id=\"decides\" class=\"good\">store</dd>",
        ">closed<",
        "3 in 1 domain",
        &format!("Overlays that meet no limit: 1, such as {}:1:12.", overlay.display()),
        "user=bob",
        "class=\"s0\" points=",
        // The keys are there, and as text.
        "user=&lt;img src=x onerror=document.title='taken'&gt;",
        "&lt;/td&gt;&lt;script&gt;document.title='taken'&lt;/script&gt;",
    ] {
        assert!(dom.contains(expected), "{expected}\n{dom}");
    }
    assert_eq!((dom.matches("<img").count(), dom.matches("<script").count()), (0, 1), "{dom}");
    for (name, arguments) in [("light", &[][..]), ("dark", &["--blink-settings=preferredColorScheme=0"])] {
        let file = target.join(format!("{name}.png"));
        let _ = fs::remove_file(&file);
        let mut all = vec![format!("--screenshot={}", file.display())];
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        browse(&browser, served.at.admin, &all);
        let image = fs::read(&file).unwrap();
        assert!(image.starts_with(b"\x89PNG") && image.len() > 20_000, "{} bytes", image.len());
    }
}

#[test]
fn the_page_asks_for_a_token_once_and_shows_nothing_without_it() {
    let Some(browser) = chromium() else { return };
    let tokens = tempfile::NamedTempFile::new().unwrap();
    fs::write(tokens.path(), "ann 0123456789abcdef look *\n").unwrap();
    let served = Served::start(POLICY, &[&format!("admin.token_file={}", tokens.path().display())]);
    ask(&served, 4, "user", "secret");
    let dom = browse(&browser, served.at.admin, &["--dump-dom".to_owned()]);
    for expected in ["data-state=\"token\"", "<form id=\"token-form\">", "weir asks for a token"] {
        assert!(dom.contains(expected), "{expected}\n{dom}");
    }
    assert!(!dom.contains("secret") && !dom.contains("per-user"), "{dom}");
    assert_eq!(served.metric("weir_admin_refused_total"), Some(1), "it does not ask again and again");
}

#[test]
fn the_page_loads_nothing_from_elsewhere_and_is_in_no_frame() {
    let served = Served::start(POLICY, &[]);
    for (path, kind) in [("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")] {
        let answer = http::get(served.at.admin, path).unwrap();
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.header("content-type").unwrap().starts_with(kind));
        let policy = answer.header("content-security-policy").unwrap();
        for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'none'"] {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        // No address but that of the namespace of SVG.
        let text = answer.body.replace("http://www.w3.org/2000/svg", "");
        for elsewhere in
            ["http:", "https:", "//cdn", "@import", "innerHTML", "outerHTML", "insertAdjacentHTML", "eval("]
        {
            assert!(!text.contains(elsewhere), "{path} has {elsewhere}");
        }
    }
    // What only shows changes nothing.
    for path in ["/", "/top", "/limited?domain=shop&rule=user", "/page.js"] {
        assert_eq!(http::request(served.at.admin, "POST", path, &[], "").unwrap().status, 405, "{path}");
    }
}
