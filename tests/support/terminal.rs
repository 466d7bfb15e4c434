//! A program on a terminal of its own, and what that terminal shows.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::process;
use super::wait::{PATIENCE, until};

/// The most that is kept of what a program writes.
const WRITTEN_BYTES_MAX: usize = 4 << 20;

/// A program that has a terminal. It is killed when dropped.
pub struct OnTerminal {
    child: Child,
    ours: File,
    /// The program's end, kept open so that its modes can be read at any time.
    theirs: OwnedFd,
    shown: Arc<Mutex<Shown>>,
}

struct Shown {
    terminal: vt100::Parser,
    raw: Vec<u8>,
}

impl OnTerminal {
    /// Starts a program on a terminal of so many rows and columns, in a process group of its own as a shell does.
    pub fn start(mut command: Command, rows: u16, columns: u16) -> OnTerminal {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&ours).expect("a terminal");
        unlockpt(&ours).expect("a terminal");
        let name = ptsname(&ours, Vec::new()).expect("its name");
        let theirs = open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("its other end");
        set_size(&theirs, rows, columns);
        let end = || Stdio::from(theirs.try_clone().expect("one more descriptor"));
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm-256color").process_group(0);
        let child = command.spawn().expect("the program starts");
        let shown =
            Arc::new(Mutex::new(Shown { terminal: vt100::Parser::new(size(rows), size(columns), 0), raw: Vec::new() }));
        let ours = File::from(ours);
        follow(ours.try_clone().expect("one more descriptor"), shown.clone());
        OnTerminal { child, ours, theirs, shown }
    }

    /// Types on the keyboard.
    pub fn press(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).expect("the terminal takes it");
    }

    /// Changes the size, and tells the program.
    pub fn resize(&mut self, rows: u16, columns: u16) {
        self.shown.lock().expect("no reader panics").terminal.screen_mut().set_size(size(rows), size(columns));
        set_size(&self.theirs, rows, columns);
        self.signal("WINCH");
    }

    /// What the terminal shows.
    pub fn screen(&self) -> String {
        self.shown.lock().expect("no reader panics").terminal.screen().contents()
    }

    /// All bytes that were written to it.
    pub fn raw(&self) -> Vec<u8> {
        self.shown.lock().expect("no reader panics").raw.clone()
    }

    /// Waits until the terminal shows a text.
    pub fn shows(&self, text: &str) {
        if super::wait::within(PATIENCE, || self.screen().contains(text).then_some(())).is_none() {
            panic!("the terminal never showed {text:?}:\n{}", self.screen());
        }
    }

    /// Whether it is as a shell expects it: lines and echo, the normal screen, a cursor.
    pub fn is_given_back(&self) -> bool {
        let modes = tcgetattr(&self.theirs).expect("the modes").local_modes;
        let shown = self.shown.lock().expect("no reader panics");
        let screen = shown.terminal.screen();
        modes.contains(LocalModes::ECHO | LocalModes::ICANON) && !screen.alternate_screen() && !screen.hide_cursor()
    }

    /// Waits until it is as a shell expects it.
    pub fn gives_back(&self) {
        until("the terminal to be given back", PATIENCE, || self.is_given_back().then_some(()));
    }

    /// Sends a signal.
    pub fn signal(&self, name: &str) {
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.child.id())]).status();
        assert!(status.is_ok_and(|status| status.success()), "kill -{name}");
    }

    /// Whether the process is stopped, as by Ctrl-Z.
    pub fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("a process");
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
    }

    /// Waits for the end.
    pub fn ended(&mut self) -> ExitStatus {
        until("the program to end", PATIENCE, || self.child.try_wait().expect("the process is ours"))
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            process::end(&mut self.child);
        }
    }
}

fn size(cells: u16) -> NonZero<u16> {
    NonZero::new(cells).expect("a terminal has cells")
}

fn set_size(terminal: &OwnedFd, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("a size");
}

/// Reads what is written, on a thread of its own, until the terminal is closed.
fn follow(mut from: File, shown: Arc<Mutex<Shown>>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 4_096];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            let mut shown = shown.lock().expect("no other thread panics with it");
            shown.terminal.process(&buffer[..read]);
            if shown.raw.len() < WRITTEN_BYTES_MAX {
                shown.raw.extend_from_slice(&buffer[..read]);
            }
        }
    });
}
