//! Settings that contradict each other: those of one group, of Redis and of traces.

use weir_settings::Settings;

use crate::all::{flags, policies, problems};

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let together = |assignments: &[&str]| problems(&[policies(), flags(assignments)]);
    insta::assert_snapshot!(together(&["listen.http=0.0.0.0:8081"]), @r#"--set: listen.http = "0.0.0.0:8081": already taken by listen.grpc = 0.0.0.0:8081"#);
    insta::assert_snapshot!(together(&["listen.admin=127.0.0.1:8080"]), @r#"--set: listen.admin = "127.0.0.1:8080": already taken by listen.http = 0.0.0.0:8080"#);
    insta::assert_snapshot!(together(&["listen.grpc=[::]:6070"]), @r#"default: listen.admin = "127.0.0.1:6070": already taken by listen.grpc = [::]:6070"#);
    insta::assert_snapshot!(together(&["listen.tls.cert_file=c"]), @"--set: listen.tls.cert_file: a certificate without its key: set listen.tls.key_file too");
    insta::assert_snapshot!(together(&["listen.tls.key_file=k"]), @"--set: listen.tls.key_file: a key without its certificate: set listen.tls.cert_file too");
    insta::assert_snapshot!(together(&["listen.tls.client_ca_file=ca"]), @"--set: listen.tls.client_ca_file: has no effect without listen.tls.cert_file");
    let names = ["listen.tls.cert_file=c", "listen.tls.key_file=k", "listen.tls.client_names=envoy.mesh"];
    insta::assert_snapshot!(together(&names), @"--set: listen.tls.client_names: has no effect without listen.tls.client_ca_file");
    insta::assert_snapshot!(together(&["redis.username=me"]), @"--set: redis.username: a user without a password: set redis.password or redis.password_file too");
    let headers = ["response.ietf_headers=on", "response.limit_headers=on", "response.limit_header=ratelimit"];
    insta::assert_snapshot!(together(&headers), @r#"--set: response.limit_header = "ratelimit": response.ietf_headers = on sets a header of this name"#);
    for fine in [
        vec!["listen.http=[::1]:8081"],
        vec!["response.ietf_headers=on", "response.limit_headers=on"],
        vec!["response.ietf_headers=on", "response.limit_header=RateLimit"],
        vec!["listen.http=0.0.0.0:0", "listen.grpc=0.0.0.0:0", "listen.admin=0.0.0.0:0"],
        vec!["listen.grpc=unix:/run/weir.sock", "listen.http=0.0.0.0:8081"],
        vec!["redis.username=me", "redis.url=redis://:pw@cache"],
        vec!["redis.username=me", "redis.password=pw"],
        vec!["redis.username=me", "redis.password_file=/run/secrets/redis"],
    ] {
        assert!(Settings::load(&[policies(), flags(&fine)]).is_ok(), "{fine:?}");
    }
}

#[test]
fn grpc_listens_at_several_addresses_by_name() {
    let listeners = |text: &str| {
        let settings = Settings::load(&[policies(), flags(&[&format!("listen.grpc={text}")])]);
        settings.map(|settings| settings.listen.grpc.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
    };
    for text in [
        "127.0.0.1:0",
        "plain:unix:/run/a,b=c.sock",
        "mesh=0.0.0.0:8081,side=unix:/run/weir.sock,local=plain:[::1]:8082",
        "a=127.0.0.1:0,b=127.0.0.1:0",
        "a=[::]:1,b=[::]:2,c=[::]:3,d=[::]:4,e=[::]:5,f=[::]:6,g=[::]:7,h=[::]:9",
    ] {
        assert_eq!(listeners(text).expect(text), text);
    }
    let many = (1..=9).map(|n| format!("l{n}=127.0.0.1:0")).collect::<Vec<_>>().join(",");
    for (text, reason) in [
        ("a=127.0.0.1:1,127.0.0.1:2", "\"127.0.0.1:2\": write NAME=ADDRESS"),
        ("a=127.0.0.1:1,a=127.0.0.1:2", "two listeners have the name a"),
        ("a=unix:/run/x,b=unix:/run/x", "a and b have the same address"),
        ("a=0.0.0.0:9000,b=127.0.0.1:9000", "already taken by listen.grpc = 0.0.0.0:9000"),
        ("http=127.0.0.1:1", "http is the name of the listener of /json: choose another"),
        ("a=plain:10.0.0.1:1", "a: 10.0.0.1:1 is neither a loopback address nor a Unix socket, so it cannot be plain:"),
        ("plain:0.0.0.0:1", "0.0.0.0:1 is neither a loopback address"),
        ("a=", "a: not IP:PORT"),
        (&many, "9 listeners: at most 8"),
        (&format!("{}=127.0.0.1:1", "x".repeat(33)), "not IP:PORT"),
    ] {
        let refused = listeners(text).expect_err(text).to_string();
        assert!(refused.contains(reason), "{text}: {refused}");
    }
}

#[test]
fn settings_of_redis_that_contradict_each_other_are_refused() {
    let together = |assignments: &[&str]| problems(&[policies(), flags(assignments)]);
    insta::assert_snapshot!(together(&["redis.url=redis://:pw@one,two:7000"]), @"--set: redis.url: several hosts: set redis.topology to sentinel or cluster");
    insta::assert_snapshot!(together(&["redis.topology=sentinel"]), @r#"--set: redis.topology = "sentinel": needs the name of the master: set redis.sentinel.master too"#);
    insta::assert_snapshot!(
        together(&["redis.topology=sentinel", "redis.sentinel.master=m", "redis.url=unix:///run/redis.sock"]),
        @"--set: redis.url: a socket, but redis.topology = sentinel needs hosts"
    );
    insta::assert_snapshot!(together(&["redis.topology=cluster", "redis.url=redis://one,two/1"]), @"--set: redis.url: a cluster has no database but 0");
    insta::assert_snapshot!(
        together(&["redis.topology=cluster", "redis.sentinel.master=m", "redis.sentinel.password=p"]),
        @"
    --set: redis.sentinel.master: only for redis.topology = sentinel, which is cluster
    --set: redis.sentinel.password: only for redis.topology = sentinel, which is cluster
    "
    );
    insta::assert_snapshot!(
        together(&["redis.topology=sentinel", "redis.sentinel.master=m", "redis.sentinel.username=me"]),
        @"--set: redis.sentinel.username: a user without a password: set redis.sentinel.password or redis.sentinel.password_file too"
    );
    insta::assert_snapshot!(together(&["redis.password=p", "redis.password_file=/p"]), @"--set: redis.password_file: redis.password is set too: remove one of them");
    insta::assert_snapshot!(together(&["redis.tls.ca_file=/ca", "redis.tls.server_name=cache"]), @"
    --set: redis.tls.ca_file: has no effect without a URL that begins with rediss://
    --set: redis.tls.server_name: has no effect without a URL that begins with rediss://
    ");
    insta::assert_snapshot!(together(&["redis.url=rediss://cache", "redis.tls.cert_file=/c"]), @"--set: redis.tls.cert_file: a certificate without its key: set redis.tls.key_file too");
    insta::assert_snapshot!(together(&["redis.url=rediss://cache", "redis.tls.key_file=/k"]), @"--set: redis.tls.key_file: a key without its certificate: set redis.tls.cert_file too");
    insta::assert_snapshot!(together(&["redis.url=rediss://cache", "redis.tls.server_name=not a name"]), @r#"--set: redis.tls.server_name = "not a name": neither a DNS name nor an IP"#);
    insta::assert_snapshot!(together(&["redis.sentinel.master="]), @r#"--set: redis.sentinel.master = "": empty: remove the setting instead"#);
    insta::assert_snapshot!(
        together(&["redis.per_second.password=p", "redis.per_second.topology=cluster", "redis.per_second.sentinel.master=m"]),
        @"
    --set: redis.per_second.topology: has no effect without redis.per_second.url
    --set: redis.per_second.password: has no effect without redis.per_second.url
    --set: redis.per_second.sentinel.master: has no effect without redis.per_second.url
    "
    );
    insta::assert_snapshot!(
        together(&["redis.per_second.url=redis://one,two/1", "redis.per_second.username=me"]),
        @"
    --set: redis.per_second.url: several hosts: set redis.per_second.topology to sentinel or cluster
    --set: redis.per_second.username: a user without a password: set redis.per_second.password or redis.per_second.password_file too
    "
    );
    for fine in [
        vec!["redis.url=redis://me:pw@one,two:7000/3", "redis.topology=sentinel", "redis.sentinel.master=m"],
        vec!["redis.url=rediss://one,two:7000", "redis.topology=cluster", "redis.tls.ca_file=/ca"],
        vec!["redis.per_second.url=rediss://one", "redis.tls.cert_file=/c", "redis.tls.key_file=/k"],
    ] {
        assert!(Settings::load(&[policies(), flags(&fine)]).is_ok(), "{fine:?}");
    }
}

#[test]
fn settings_of_traces_that_contradict_each_other_are_refused() {
    let text = problems(&[
        policies(),
        flags(&[
            "tracing.queue=10",
            "tracing.batch_max=11",
            "tracing.otlp.tls.cert_file=cert",
            "tracing.resource_attributes=a=b,service.name=x",
        ]),
    ]);
    insta::assert_snapshot!(text, @r"
    --set: tracing.batch_max: a batch of 11 is more than tracing.queue = 10 holds
    --set: tracing.otlp.tls.cert_file: a certificate without its key: set tracing.otlp.tls.key_file too
    --set: tracing.resource_attributes: service.name is a setting by itself: tracing.service_name
    ");
    let secret = flags(&["tracing.otlp.headers=authorization:hunter2"]);
    let settings = Settings::load(&[policies(), secret]).unwrap();
    assert!(!format!("{settings:?}").contains("hunter2"));
}
