//! The metrics of callers and their connections. Not here: all other metrics (table.rs).

use super::{Section, counter, gauge};

pub(super) const CALLERS: Section = Section {
    title: "Callers",
    about: "Those that begin with `weir_tls` are there with `listen.tls` only.",
    metrics: &[
        gauge("weir_connections", &["runtime"], "connections")
            .help("Open gRPC connections of each runtime. There is one for each core.")
            .more("weir spreads connections by the requests of the last seconds, so busy callers weigh more than idle ones."),
        gauge("weir_grpc_held_bytes", &[], "bytes")
            .help("Memory that weir has reserved for requests and responses of gRPC callers.")
            .more("At most `grpc.held_bytes` and a quarter more, or 8 KiB to 32 KiB for each connection."),
        gauge("weir_grpc_connections_bytes", &[], "bytes")
            .help("Memory of the buffers and tables of open gRPC connections, as weir estimates it.")
            .more("At most a quarter of the memory that the process may use. Near that, weir closes connections of the address that holds \
                   most: see [what a caller can hold](bounds.md#what-a-caller-can-hold)."),
        counter("weir_grpc_refused_total", &[], "requests")
            .help("gRPC requests refused with UNAVAILABLE because too much memory was reserved for callers.")
            .more("Callers do not read, or do not end their requests, or a store stalls. The log has the address of a caller. \
                   [Alert on their share of the requests](operations.md#weirrefusescallers)."),
        counter("weir_grpc_closed_total", &["reason"], "connections")
            .help("gRPC connections that weir closed because of their peer's behaviour, by reason.")
            .more("`frames`: too many frames without requests, or of requests that were given up. `handshake`, `headers`, `unread`: not in \
                   time. `held`: it used too much memory. `idle`, `unused`: too many connections were open. `memory`: \
                   all connections together held too much, and its address the most. `retired`: its table of requests had grown, and it \
                   was idle. `protocol`: the peer broke the \
                   rules of HTTP/2. See [what a caller can hold](bounds.md#what-a-caller-can-hold)."),
        counter("weir_grpc_reset_requests_total", &["code"], "requests")
            .help("Requests that HTTP/2 reset before they were decided, by the error code of HTTP/2.")
            .more("A caller whose requests fail open notices nothing: alert on `protocol_error`. The log has the address of the caller."),
        counter("weir_connections_shed_total", &["listener", "reason"], "connections")
            .help("Connections that a listener closed to stay within its bounds, by reason.")
            .more("`listener` is the name of a gRPC listener, or `http` for all HTTP listeners. `full`: there were as many as there may be; HTTP then closes \
                   the oldest that waits for a request. `peer`: the address had `http.connections_per_peer`. `handover`: every core had \
                   1,024 that it had not taken over yet."),
        counter("weir_caller_requests_total", &["caller", "result"], "requests")
            .help("Requests by caller, and whether the caller may send them.")
            .more("There with `callers.file` only; who reads the metrics reads the names of its callers. `result` is `allowed`, or what the caller lacks: `domain`, a right (`charge`, `peek`, \
                   `refund`, `settle`, `limits`), or `hits` if a descriptor has too many, or its receipt. The first 100 callers have series of \
                   their own, further ones together `(others)`. `(unlisted)` has the requests without a caller: `unlisted` if no \
                   caller has the certificate or the listener, `several_callers` if the names of a certificate are those of different \
                   callers, `too_many_names` if weir does not read them all, because they are too many or their list is malformed. [Alert on each refusal](operations.md#weirrefusesrequestsofcallers)."),
        gauge("weir_callers", &[], "callers")
            .help("Callers in force.")
            .more("There with `callers.file` only."),
        counter("weir_admin_refused_total", &[], "requests")
            .help("Requests that had no token of admin.token_file, or one without the right or the domain.")
            .more("There with `admin.token_file` only. The log has the address and the name of the token."),
        gauge("weir_certificate_not_after_timestamp_seconds", &["certificate", "use"], "seconds since 1970")
            .help("When certificates in use expire, in seconds since 1970; 0 if there is none.")
            .more("`use`: `grpc` for the listener, `redis`, `redis_per_second`, `xds`, `traces`, `metrics` or `alerts`. `certificate`: \
                   `own` for weir's certificate with its intermediates, of which the first to expire counts. `authority` for those of \
                   the `ca_file`, of which the last counts. `peer` for the servers that weir has connections to, of which the first \
                   counts. Alert 14 days before."),
        counter("weir_tls_handshake_errors_total", &["kind"], "handshakes")
            .help("TLS handshakes of gRPC clients that failed, by reason.")
            .more("`closed`: the client closed the connection. `no_certificate`: it has none. `certificate`: its authority, time or use is \
                   wrong. `name`: it has none of `listen.tls.client_names`. `refused`: the client does not accept weir's \
                   certificate. `protocol`: it does not support TLS 1.2 or 1.3. `too_many` and \
                   `too_many_of_peer`: weir gave the oldest unfinished one up, of all clients or of one address; see [what a caller can \
                   hold](bounds.md#what-a-caller-can-hold)."),
        counter("weir_tls_reloads_total", &["result"], "changes")
            .help("Changed files of the gRPC listener's TLS, by whether they were put in force.")
            .more("`replaced`, or `refused` because they do not fit together or cannot be read. `weir_input_refused` \
                   shows whether they still are."),
    ],
};
