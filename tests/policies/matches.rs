//! The example of lists, networks and regular expressions limits what it says.

use std::path::Path;

use weir_engine::{Entry, key};
use weir_policies::load_dir;

#[test]
fn the_example_limits_by_lists_networks_and_regular_expressions() {
    let loaded = load_dir(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/matches")).unwrap();
    assert_eq!(loaded.warnings.count(), 0, "{}", loaded.warnings);
    let domain = loaded.policies.domain("matches").unwrap();
    for (key, value, path, key_of_state) in [
        ("client", "10.1.2.3", "client=10.1.0.0/16", "w1:{matches|client=10.1.2.3}f1s"),
        ("client", "10.2.2.3", "client=10.0.0.0/8,...", "w1:{matches|client=10.2.2.3}f1s"),
        ("client", "::ffff:192.168.0.1", "client=10.0.0.0/8,...", "w1:{matches|client=::ffff:192.168.0.1}f1s"),
        ("client", "2001:db8::7", "client=2001:db8::/32", "w1:{matches|client==2001:db8::/32}f1s"),
        ("client", "10.1.2.9", "client=10.1.2.9", "w1:{matches|client=10.1.2.9}f1s"),
        ("client", "203.0.113.9", "client", "w1:{matches|client=203.0.113.9}f1s"),
        ("plan", "gold", "plan=gold,...", "w1:{matches|plan=gold}f60s"),
        ("plan", "silver", "plan=gold,...", "w1:{matches|plan=silver}f60s"),
        ("path", "/v2/orders/17", "path=~/v[0-9]+/orders/[0-9]+", "w1:{matches|path=/v2/orders/17}f1s"),
        ("path", "/v2/orders/all", "path=/v2/*", "w1:{matches|path=/v2/orders/all}f1s"),
    ] {
        let entries = [Entry { key, value }];
        let found = loaded.policies.find(domain, &entries);
        let rule = found.rule.unwrap_or_else(|| panic!("{key}={value} meets nothing"));
        assert_eq!(&*rule.path, path, "{key}={value}");
        let mut written = String::new();
        key::write_key(&mut written, "matches", entries.iter().copied(), &found.shared, &rule.limits[0]);
        assert_eq!(written, key_of_state, "{key}={value}");
    }
}
