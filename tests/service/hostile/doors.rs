//! The gRPC listener: what one peer can hold, and that others are served meanwhile.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use prost::Message as _;

use crate::support::frames::{
    ACK, DATA, END_STREAM, HEADERS, INITIAL_WINDOW, MAX_STREAMS, PING, PRIORITY, REFLECTION, Raw, SETTINGS,
    SHOULD_RATE_LIMIT, WATCH, WINDOW_UPDATE, frame, headers, message, request, reset,
};
use crate::support::process::{LogLine, PolicyDirectory, Weir};
use crate::support::rls::{self, Client};
use crate::support::seen::warns;
use crate::support::served::{Served, metric};
use crate::support::wait::{PATIENCE, until};

const POLICY: &str = "\
domain: shop
descriptors:
  - {key: user, rate_limit: {requests_per_unit: 4000000000, unit: year}}
";

/// Longer than every time that weir gives a peer.
const LONG: Duration = Duration::from_secs(60);
/// How much a process may have grown by an attack, in KiB.
const GROWTH_KIB_MAX: u64 = 64 * 1_024;
/// The window of a peer that reads.
const WIDE: u32 = 1 << 20;

/// A decision about one user.
fn ann() -> Vec<u8> {
    rls::request("shop", &[("user", "ann")]).encode_to_vec()
}

/// A decision over 64 descriptors, whose response is large.
fn large() -> Vec<u8> {
    let mut request = rls::request("shop", &[("user", "ann")]);
    request.descriptors = vec![request.descriptors[0].clone(); 64];
    request.encode_to_vec()
}

fn streams(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(|number| 2 * number + 1)
}

fn assert_served(address: SocketAddr) {
    assert!(Client::connect(address).admits("shop", "user", "bob"));
}

fn start(settings: &[&str]) -> (Weir, PolicyDirectory) {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    (Weir::start(&policies.path(), &arguments), policies)
}

/// The memory of a server that has served a little, in KiB.
fn baseline(weir: &Weir) -> u64 {
    for _ in 0..20 {
        assert_served(weir.grpc);
    }
    weir.memory_kib()
}

fn held(weir: &Weir) -> u64 {
    metric(weir.http, "weir_grpc_held_bytes").expect("a metric")
}

#[test]
fn requests_that_never_end_hold_a_bounded_amount_and_are_given_up() {
    let (weir, _policies) = start(&["grpc.receive_timeout=2s"]);
    let before = baseline(&weir);
    let mut peers: Vec<Raw> = (0..8).map(|_| Raw::connect(weir.grpc, WIDE)).collect();
    let begun = &message(&vec![0; 400_000])[..300_000];
    for peer in &mut peers {
        for stream in streams(60) {
            peer.send(&headers(stream, SHOULD_RATE_LIMIT)).unwrap();
            // Sending goes on where the server answers early.
            if peer.send_data(stream, begun).is_err() {
                break;
            }
        }
    }
    assert_served(weir.grpc);
    let grown = weir.memory_kib().saturating_sub(before);
    assert!(grown < GROWTH_KIB_MAX, "grew by {grown} KiB, {} bytes accounted for", held(&weir));
    assert!(metric(weir.http, "weir_grpc_refused_total").unwrap() > 0, "144 MB fit into no bound");
    let names_the_caller = |line: &LogLine| {
        warns(line, "too much memory is reserved for its caller")
            && line.field("peer").is_some_and(|peer| peer == "127.0.0.1")
    };
    assert!(weir.wait_for_log(0, LONG, names_the_caller), "{}", weir.written());
    // All are given up, though the connections stay.
    until("the bytes to be let go", LONG, || (held(&weir) < 1 << 20).then_some(()));
    assert_served(weir.grpc);
}

/// A caller that sends many requests at once is no heavier than others: they are read and answered a few at a time.
#[test]
fn a_burst_is_answered_while_others_hold_all_that_callers_may() {
    const TOTAL: u64 = 1 << 20;
    const BURST: u32 = 200;
    let (weir, _policies) = start(&[
        "runtime.cores=1",
        "limits.request_bytes=16384",
        "grpc.connection_held_bytes=65536",
        &format!("grpc.held_bytes={TOTAL}"),
    ]);
    let burst: Vec<u8> = streams(BURST).flat_map(|stream| request(stream, SHOULD_RATE_LIMIT, &ann())).collect();
    let mut honest = Raw::connect(weir.grpc, WIDE);
    let mut peers: Vec<Raw> = (0..40).map(|_| Raw::connect(weir.grpc, 0)).collect();
    for peer in &mut peers {
        peer.send(&burst[..burst.len() / 5]).unwrap();
    }
    until("the bytes to be held", PATIENCE, || (held(&weir) > TOTAL - (1 << 16)).then_some(()));
    honest.send(&burst).unwrap();
    let (mut responses, mut ended) = (0, 0);
    while ended < BURST {
        let frame = honest.next().unwrap().expect("the connection stays");
        responses += u32::from(frame.kind == DATA);
        ended += u32::from([HEADERS, DATA].contains(&frame.kind) && frame.flags & END_STREAM != 0);
    }
    assert_eq!(responses, BURST, "the others were refused");
}

#[test]
fn a_body_that_does_not_come_is_answered() {
    let served = Served::start(POLICY, &["grpc.receive_timeout=50ms"]);
    let mut peer = Raw::connect(served.at.grpc, WIDE);
    for (stream, begun) in [(1, &b""[..]), (3, b"\0"), (5, b"\0\0\0\x10\0half")] {
        peer.send(&headers(stream, SHOULD_RATE_LIMIT)).unwrap();
        peer.send(&frame(DATA, 0, stream, begun)).unwrap();
        assert!(peer.answered(stream), "{begun:?}");
    }
    peer.send(&request(7, SHOULD_RATE_LIMIT, &ann())).unwrap();
    assert!(peer.answered(7), "the connection stays");
}

#[test]
fn responses_that_are_not_read_hold_a_bounded_amount_and_end_their_connection() {
    let (weir, _policies) = start(&[]);
    let before = baseline(&weir);
    let large = large();
    // Without any window, and with one of a single byte, which makes h2 take each response whole.
    let mut peers: Vec<Raw> = [0, 1].repeat(20).into_iter().map(|window| Raw::connect(weir.grpc, window)).collect();
    for peer in &mut peers {
        let requests: Vec<u8> = streams(256).flat_map(|stream| request(stream, SHOULD_RATE_LIMIT, &large)).collect();
        let mut sent = 0;
        // As much as the server takes.
        for part in requests.chunks(60_000) {
            if peer.try_send(part).is_err() {
                break;
            }
            sent += part.len();
        }
        assert!(sent > 0);
    }
    assert_served(weir.grpc);
    let grown = weir.memory_kib().saturating_sub(before);
    let shaken = 32 * peers.len() as u64;
    assert!(grown < GROWTH_KIB_MAX + shaken, "grew by {grown} KiB");
    for peer in &mut peers {
        assert!(peer.closed().0, "a response was never taken");
    }
    until("the bytes to be let go", LONG, || (held(&weir) < 1 << 20).then_some(()));
    assert_served(weir.grpc);
}

#[test]
fn wide_requests_wait_while_their_peer_reads_no_responses() {
    const SENT: u32 = 64;
    const UNTAKEN_MAX: u64 = 8;
    let served = Served::start(POLICY, &["runtime.cores=1"]);
    let mut others = 0;
    let mut decided = |by_others: bool| {
        if by_others {
            assert_served(served.at.grpc);
            others += 1;
        }
        served.metric("weir_requests_total{domain=\"shop\",result=\"ok\"}").unwrap() - others
    };
    let mut peer = Raw::connect(served.at.grpc, 0);
    peer.send(&streams(SENT).flat_map(|stream| request(stream, SHOULD_RATE_LIMIT, &large())).collect::<Vec<u8>>())
        .unwrap();
    until("the first to be decided", PATIENCE, || (decided(false) == UNTAKEN_MAX).then_some(()));
    for _ in 0..100 {
        assert_eq!(decided(true), UNTAKEN_MAX);
    }
    // The peer begins to read.
    let mut window = INITIAL_WINDOW.to_be_bytes().to_vec();
    window.extend(WIDE.to_be_bytes());
    peer.send(&[frame(SETTINGS, 0, 0, &window), frame(WINDOW_UPDATE, 0, 0, &WIDE.to_be_bytes())].concat()).unwrap();
    assert!(peer.answered(2 * SENT - 1), "the last");
    until("all to be decided", PATIENCE, || (decided(false) == u64::from(SENT)).then_some(()));
}

/// Frames that belong to no request; each is legal.
#[test]
fn floods_of_frames_without_requests_end_in_a_goaway() {
    let served = Served::start(POLICY, &["runtime.cores=1"]);
    let floods: [(&str, Vec<u8>); 7] = [
        ("PING", frame(PING, 0, 0, b"are you?")),
        ("PING that nobody asked for", frame(PING, ACK, 0, b"unasked!")),
        ("SETTINGS", frame(SETTINGS, 0, 0, &[])),
        ("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 7])),
        ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes())),
        ("unknown frames", frame(0xfa, 0, 0, b"?")),
        ("SETTINGS of a window", {
            let mut setting = INITIAL_WINDOW.to_be_bytes().to_vec();
            setting.extend(70_000_u32.to_be_bytes());
            frame(SETTINGS, 0, 0, &setting)
        }),
    ];
    for (name, flood) in floods {
        let mut peer = Raw::connect(served.at.grpc, WIDE);
        let mut socket = peer.socket.try_clone().unwrap();
        // Written beside reading, since the server may answer each.
        let writer = std::thread::spawn(move || {
            let many = flood.repeat(1_000);
            while socket.write_all(&many).is_ok() {}
        });
        let (closed, code) = peer.closed();
        writer.join().unwrap();
        assert!(closed, "{name}");
        // A GOAWAY may be lost, where the peer still sends; if one came it says why.
        assert!(code.is_none_or(|code| code == 0xb), "{name}: {code:?}");
        assert_served(served.at.grpc);
    }
    assert!(served.metric("weir_grpc_closed_total").unwrap() >= 7);
}

/// Many more frames than a bound on a second admits, unless weir takes so long for them that they are no flood.
fn assert_resets_end_their_connection(path: &'static str, flags: u8) {
    const STREAMS: u32 = 250_000;
    const FRAMES_A_SECOND: u64 = 1_024;
    // What the buffers of the system take.
    const FRAMES_BUFFERED: u64 = 200_000;
    let served = Served::start(POLICY, &["runtime.cores=1"]);
    let mut peer = Raw::connect(served.at.grpc, WIDE);
    let mut socket = peer.socket.try_clone().unwrap();
    let began = Instant::now();
    let writer = std::thread::spawn(move || {
        let mut frames = 0;
        for stream in streams(STREAMS) {
            let mut cancelled = [headers(stream, path), reset(stream)].concat();
            cancelled[4] |= flags;
            if socket.write_all(&cancelled).is_err() {
                break;
            }
            frames += 2;
        }
        frames
    });
    let (closed, _) = peer.closed();
    let seconds = began.elapsed().as_secs() + 1;
    let _ = peer.socket.shutdown(std::net::Shutdown::Both);
    let frames = writer.join().unwrap();
    let most = seconds * FRAMES_A_SECOND + FRAMES_BUFFERED;
    assert!(frames <= most, "{path}, flags {flags}: {frames} frames were taken in {seconds} s, closed: {closed}");
    assert_served(served.at.grpc);
}

#[test]
fn rapid_resets_end_their_connection() {
    assert_resets_end_their_connection(SHOULD_RATE_LIMIT, 0);
}

/// A connection of 767,400 resets took a core and was never closed. weir counted a response as an answer when it was made, though
/// its caller had given up, and each answer raised the bound on frames.
#[test]
fn rapid_resets_of_requests_that_are_refused_or_for_other_services_earn_nothing() {
    for (path, flags) in [
        (SHOULD_RATE_LIMIT, END_STREAM),
        ("/grpc.health.v1.Health/Check", END_STREAM),
        (WATCH, 0),
        (REFLECTION, 0),
        ("/no/method", END_STREAM),
    ] {
        assert_resets_end_their_connection(path, flags);
    }
}

/// What a server finds that was stopped for a moment, while its callers gave up.
#[test]
fn callers_that_gave_up_during_a_stall_keep_their_connection() {
    let served = Served::start(POLICY, &["runtime.cores=1"]);
    let mut peer = Raw::connect(served.at.grpc, WIDE);
    let ann = ann();
    let mut stalled = Vec::new();
    for stream in streams(500) {
        stalled.extend(request(stream, SHOULD_RATE_LIMIT, &ann));
        stalled.extend(reset(stream));
    }
    stalled.extend(request(9_001, SHOULD_RATE_LIMIT, &ann));
    peer.send(&stalled).unwrap();
    assert!(peer.answered(9_001), "one that did not give up");
}

/// The same with a real stall: the process is stopped, and its callers give up after 20 ms.
#[test]
fn a_process_that_was_stopped_keeps_its_connections() {
    const CALLERS: usize = 64;
    /// All callers together give up fewer calls than weir lets wait, however slow the machine is.
    const GIVEN_UP_MAX: usize = 28;
    const DEADLINE: Duration = Duration::from_millis(20);
    const STALL: Duration = Duration::from_millis(150);
    let (weir, _policies) = start(&["runtime.cores=1"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let failed = runtime.block_on(async {
        let channel = rls::channel(weir.grpc).await;
        // A connection may give up as many as this only if others were answered.
        for _ in 0..2 * CALLERS * GIVEN_UP_MAX / 8 {
            rls::ask(channel.clone(), rls::request("shop", &[("user", "ann")])).await.expect("an answer");
        }
        let ending = Arc::new(AtomicBool::new(false));
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..CALLERS {
            let (channel, ending) = (channel.clone(), ending.clone());
            callers.spawn(async move {
                let (mut failed, mut given_up) = (Vec::new(), 0);
                while !ending.load(Relaxed) && given_up < GIVEN_UP_MAX {
                    let request = rls::request("shop", &[("user", "ann")]);
                    match tokio::time::timeout(DEADLINE, rls::ask(channel.clone(), request)).await {
                        Ok(Ok(_)) => {}
                        Err(_) => given_up += 1,
                        Ok(Err(status)) => failed.push(status.to_string()),
                    }
                }
                failed
            });
        }
        for _ in 0..3 {
            weir.signal("STOP");
            tokio::time::sleep(STALL).await;
            weir.signal("CONT");
            // Callers are answered again before the next stall.
            rls::ask(channel.clone(), rls::request("shop", &[("user", "bob")])).await.expect("an answer");
        }
        ending.store(true, Relaxed);
        callers.join_all().await.concat()
    });
    assert!(failed.is_empty(), "calls failed that had not given up: {failed:?}");
    assert_eq!(metric(weir.http, "weir_grpc_closed_total"), Some(0));
}

#[test]
fn a_connection_has_as_many_streams_as_the_setting_says() {
    for (settings, most) in [(&[][..], 256), (&["grpc.max_streams=7"], 7)] {
        let served = Served::start(POLICY, settings);
        let peer = Raw::connect(served.at.grpc, WIDE);
        assert!(peer.settings.contains(&(MAX_STREAMS, most)), "{:?}", peer.settings);
    }
}

#[test]
fn streams_that_last_are_few() {
    let served = Served::start(POLICY, &[]);
    for (path, most) in [(REFLECTION, 4), (WATCH, 16)] {
        let mut peer = Raw::connect(served.at.grpc, WIDE);
        for stream in streams(most) {
            peer.send(&headers(stream, path)).unwrap();
            if path == WATCH {
                peer.send(&frame(DATA, 1, stream, &message(b""))).unwrap();
            }
        }
        let one_more = 2 * most + 1;
        peer.send(&headers(one_more, path)).unwrap();
        assert!(peer.answered(one_more), "{path}: refused at once");
        peer.send(&request(one_more + 2, SHOULD_RATE_LIMIT, &ann())).unwrap();
        assert!(peer.answered(one_more + 2), "decisions go on");
    }
}

#[test]
fn a_health_request_that_does_not_end_is_answered_and_one_that_is_too_large_refused() {
    let served = Served::start(POLICY, &["grpc.receive_timeout=50ms"]);
    let mut peer = Raw::connect(served.at.grpc, WIDE);
    peer.send(&headers(1, "/grpc.health.v1.Health/Check")).unwrap();
    assert!(peer.answered(1));
    peer.send(&headers(3, "/grpc.health.v1.Health/Check")).unwrap();
    peer.send_data(3, &message(&vec![0; 10_000])).unwrap();
    assert!(peer.answered(3));
}

#[test]
fn a_peer_that_does_not_shake_hands_is_closed() {
    let served = Served::start(POLICY, &[]);
    for begun in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04"] {
        let mut socket = TcpStream::connect(served.at.grpc).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        socket.write_all(begun).unwrap();
        let mut answer = Vec::new();
        // weir's own SETTINGS, and then the end.
        let ended = socket.read_to_end(&mut answer);
        assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));
    }
}

#[test]
fn connections_without_a_request_do_not_lock_others_out() {
    /// More than weir keeps of them.
    const MANY: usize = 4_300;
    let (weir, _policies) = start(&["runtime.cores=2"]);
    let mut honest = Client::connect(weir.grpc);
    assert!(honest.admits("shop", "user", "ann"));
    let mut silent = Vec::new();
    for _ in 0..MANY {
        let mut socket = TcpStream::connect(weir.grpc).unwrap();
        socket.write_all(b"P").unwrap();
        silent.push(socket);
    }
    assert_served(weir.grpc);
    assert!(honest.admits("shop", "user", "ann"), "one that has completed a request is kept");
    until("the oldest to be closed", PATIENCE, || {
        let open = [0, 1].map(|core| metric(weir.http, &format!("weir_connections{{runtime=\"{core}\"}}")).unwrap());
        (open.iter().sum::<u64>() <= 4_096 + 16).then_some(())
    });
    assert!(metric(weir.http, "weir_grpc_closed_total").unwrap() > 0);
    drop(silent);
    until("the sockets to be let go", LONG, || (weir.open_files() < 200).then_some(()));
}
