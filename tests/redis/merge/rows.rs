//! Decisions under rows that share a call: of those under a changed row none is made, and the others are.

use weir_store::{Deciding as _, Inspected as _, RowChange, RowChanged, RowRead, RowVersion, StoredRow, Texts as _};

use super::*;

/// Also a state that any other decision would write anew, since it is ahead of the clock, stays as it is. The decisions that
/// shared the call are made, each by a call of its own.
#[test]
fn a_decision_under_a_changed_row_writes_nothing_beside_others() {
    let (server, runtime) = (RedisServer::start(), runtime());
    let store = store(&server, &runtime, "", MERGE_MAX);
    let far = Instant::now() + PATIENCE;
    let row = StoredRow { version: 7, until: None, text: "{}".into() };
    let written = ["row", "other"].map(|key| (key, RowChange::Write(&row)));
    let first = Ok(RowChanged::Written { before: RowRead::Absent });
    assert_eq!(runtime.block_on(store.change_rows(&written, far).get()).unwrap(), [first.clone(), first]);
    let takes = [Operation::Consume(1), Operation::Report(2), Operation::Refund(1), Operation::Peek];
    for (at, limit) in limits().iter().enumerate().filter(|(_, limit)| limit.requests() > 0) {
        let keys: Vec<String> = (0..2 * takes.len()).map(|key| format!("{at}.{key}")).collect();
        store.set_now(NOW + 3 * 3_600_000_000);
        hit_all(&runtime, &store, &keys, limit).into_iter().for_each(|decision| assert!(!decision.unwrap().denied));
        store.set_now(NOW);
        let asked: Vec<(&str, &Limit)> = keys.iter().map(|key| (key.as_str(), limit)).collect();
        let states = || runtime.block_on(store.read_states(&asked, far).get()).unwrap().states;
        let before = states();
        let decide = async |(at, key): (usize, &String)| {
            // Every second decision was made under another version.
            let row_versions = [RowVersion { key: ["row", "other"][at % 2], version: 7 + (at % 2) as u64 }];
            let charges = [charge(key, limit, takes[at / 2])];
            let before = Before { row_versions: &row_versions, ..Before::default() };
            store.decide_after(before, &charges, Mode::Atomic, far).get().await
        };
        let calls = server.runs("evalsha");
        let decisions = runtime.block_on(join_all(keys.iter().enumerate().map(decide)));
        let calls = server.runs("evalsha") - calls;
        let shared = u64::from(!limit.kind().format().is_list());
        assert_eq!(calls, shared + keys.len() as u64, "{:?}", limit.algorithm());
        for (at, (decision, (before, after))) in decisions.into_iter().zip(before.into_iter().zip(states())).enumerate()
        {
            let what = format!("{:?} by {:?}", takes[at / 2], limit.algorithm());
            match decision {
                Ok(_) => assert!(at % 2 == 0 && before != after, "{what}: {before:?}, {after:?}"),
                Err(error) => {
                    assert_eq!(error, StoreError::StaleRow { found: vec![7] }, "{what}");
                    assert!(at % 2 == 1 && before == after, "{what}");
                }
            }
        }
    }
}

#[test]
fn decisions_under_two_versions_of_a_row_do_not_share_a_call() {
    let (server, runtime) = (RedisServer::start(), runtime());
    let store = store(&server, &runtime, "", MERGE_MAX);
    let (keys, limit, far) = (keys(8), per_hour(9), Instant::now() + PATIENCE);
    let row = StoredRow { version: 7, until: None, text: "{}".into() };
    runtime.block_on(store.change_rows(&[("row", RowChange::Write(&row))], far).get()).unwrap()[0].clone().unwrap();
    // Loads the scripts.
    hit_all(&runtime, &store, &keys, &limit);
    hit_all(&runtime, &store, &keys[..1], &limit);
    let decide = async |(at, key): (usize, &String)| {
        let row_versions = [RowVersion { key: "row", version: if at < 4 { 7 } else { 8 } }];
        let charges = [charge(key, &limit, Operation::Consume(1))];
        let before = Before { row_versions: &row_versions, ..Before::default() };
        store.decide_after(before, &charges, Mode::Atomic, far).get().await
    };
    let calls = server.runs("evalsha");
    let decisions = runtime.block_on(join_all(keys.iter().enumerate().map(decide)));
    // The second call finds another version, and its four decisions are asked once more, each alone.
    assert_eq!(server.runs("evalsha") - calls, 2 + 4);
    let are_made: Vec<bool> = decisions.iter().map(Result::is_ok).collect();
    assert_eq!(are_made, [true, true, true, true, false, false, false, false]);
}
