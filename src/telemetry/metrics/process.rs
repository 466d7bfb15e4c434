//! The numbers of the system about this process: CPU time, memory, file descriptors, threads. Read from /proc on
//! demand.
//!
//! A crate for this would add procfs and its four dependencies for seven numbers. A number that cannot be read is left
//! out: all of them on a system without /proc.

use std::fs;

use super::families::{Source, Value, Visitor};
use super::table::metric;

/// Ticks in a second, as in /proc: part of Linux' interface, for any kernel clock.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug, Default)]
struct Texts {
    stat: String,
    status: String,
    limits: String,
    system: String,
    open_files: Option<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Process {
    was_shown: bool,
}

impl Source for Process {
    fn advance(&mut self, to: &mut dyn Visitor) -> bool {
        if std::mem::replace(&mut self.was_shown, true) {
            return false;
        }
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let texts = Texts {
            stat: read("/proc/self/stat"),
            status: read("/proc/self/status"),
            limits: read("/proc/self/limits"),
            system: read("/proc/stat"),
            // The directory itself is open during the count.
            open_files: fs::read_dir("/proc/self/fd").ok().map(|files| files.count().saturating_sub(1)),
        };
        for (name, value) in texts.numbers() {
            if let (Some(metric), Some(value)) = (metric(name), value) {
                to.family(metric.into());
                to.series(&[], Value::Number(value));
            }
        }
        true
    }
}

impl Texts {
    #[expect(clippy::float_arithmetic, reason = "metrics are floats")]
    fn numbers(&self) -> [(&'static str, Option<f64>); 7] {
        // The name of the program is in parentheses and can have any characters. The third field, the state, follows.
        let fields: Vec<&str> =
            self.stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let cpu = field(14).zip(field(15)).map(|(user, system)| (user + system) / TICKS_PER_SECOND);
        let booted = number_after(&self.system, "btime ");
        let started = field(22).zip(booted).map(|(ticks, booted)| booted + ticks / TICKS_PER_SECOND);
        let kib = |name: &str| number_after(&self.status, name).map(|kib| kib * 1024.0);
        [
            ("process_cpu_seconds_total", cpu),
            ("process_max_fds", number_after(&self.limits, "Max open files ")),
            ("process_open_fds", self.open_files.map(|count| count as f64)),
            ("process_resident_memory_bytes", kib("VmRSS:")),
            ("process_start_time_seconds", started),
            ("process_threads", number_after(&self.status, "Threads:")),
            ("process_virtual_memory_bytes", kib("VmSize:")),
        ]
    }
}

/// The number after a word at the beginning of a line.
fn number_after(text: &str, word: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(word))?;
    rest.split_whitespace().next()?.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_for_any_name_of_the_program() {
        let texts = Texts {
            stat: "7 (we) ir 1) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 9 0 1234 99 88".to_owned(),
            status: "Name:\twe) ir\nVmSize:\t    2048 kB\nVmRSS:\t    1024 kB\nThreads:\t9\n".to_owned(),
            limits: "Max processes  1 1 processes\nMax open files            1024                 4096                 files\n"
                .to_owned(),
            system: "cpu  1 2 3\nbtime 1000\n".to_owned(),
            open_files: Some(12),
        };
        let found = texts.numbers().map(|(_, number)| number);
        let expected = [3.0, 1024.0, 12.0, 1_048_576.0, 1012.34, 9.0, 2_097_152.0];
        assert_eq!(found, expected.map(Some));
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        let unlimited = "Max open files            unlimited            unlimited            files\n";
        for limits in ["", "nonsense\0", unlimited] {
            let texts = Texts { limits: limits.to_owned(), stat: ")".to_owned(), ..Texts::default() };
            assert!(texts.numbers().iter().all(|(_, number)| number.is_none()), "{texts:?}");
        }
    }
}
