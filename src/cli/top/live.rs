//! The live table. The terminal is restored at every kind of end.
//!
//! A thread reads the keyboard. Requests for reports do not block keys.

use std::future::Future;
use std::pin::Pin;
use std::time::Instant;
use std::{io, thread};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use weir_text::spell;

use super::draw::draw;
use super::report::{self, Report};
use super::view::{Action, View};
use super::{TopArguments, TopError};
use crate::admin::NoAnswer;
use crate::token::Token;

/// The most queued events; more wait in the terminal.
const EVENTS_MAX: usize = 64;

/// The terminal while the table uses it.
struct Screen(DefaultTerminal);

impl Screen {
    /// A panic restores the terminal too.
    fn enter() -> io::Result<Self> {
        match ratatui::try_init() {
            Ok(terminal) => Ok(Self(terminal)),
            Err(error) => {
                // The terminal may be partly initialised.
                let _ = ratatui::try_restore();
                Err(error)
            }
        }
    }

    fn draw(&mut self, view: &View) -> io::Result<()> {
        self.0.draw(|frame| draw(frame, view, Instant::now()))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // An error means that the terminal is closed.
        let _ = ratatui::try_restore();
    }
}

type Asking = Pin<Box<dyn Future<Output = Result<Report, NoAnswer>>>>;

/// Shows reports until the user ends it.
pub(super) async fn run(arguments: &TopArguments, token: Token) -> Result<(), TopError> {
    let server = &arguments.server.server;
    // Before the terminal is initialised, so a wrong address prints a plain error.
    let report = report::ask(server, &token, "").await?.without_rates();
    let mut view = View::new(server.to_string(), spell(arguments.interval), (arguments.by, arguments.sort), report);
    let mut ends = ends().map_err(TopError::Start)?;
    let mut continued = signal(SignalKind::from_raw(libc::SIGCONT)).map_err(TopError::Start)?;
    let mut screen = Some(Screen::enter().map_err(TopError::Terminal)?);
    let mut events = events();
    let mut ticks = interval(arguments.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut asking: Option<Asking> = None;
    let mut asked = String::new();
    loop {
        if let Some(screen) = &mut screen {
            screen.draw(&view)?;
        }
        tokio::select! {
            biased;
            _ = ends.recv() => return Ok(()),
            _ = continued.recv() => {
                // The shell may have changed the terminal meanwhile.
                drop(screen.take());
                screen = Some(Screen::enter().map_err(TopError::Terminal)?);
            }
            event = next(&mut events) => match view.event(&event.map_err(TopError::Terminal)?) {
                Action::Quit => return Ok(()),
                Action::Draw => {}
                Action::Suspend => {
                    drop(screen.take());
                    // Stops the process. Without a shell that could continue it, this has no effect.
                    let _ = kill_process(getpid(), Signal::TSTP);
                }
            },
            answer = answer(&mut asking) => {
                asking = None;
                match answer {
                    Ok(report) => view.show(report),
                    Err(error) => view.failed(error.to_string(), Instant::now()),
                }
                // The filter has changed meanwhile: this report may lack keys that match it.
                if asked != view.filter {
                    ticks.reset_immediately();
                }
            }
            _ = ticks.tick() => {
                if screen.is_none() {
                    screen = Some(Screen::enter().map_err(TopError::Terminal)?);
                }
                if !view.is_paused && asking.is_none() {
                    let (server, token) = (server.clone(), token.clone());
                    asked.clone_from(&view.filter);
                    let filter = asked.clone();
                    asking = Some(Box::pin(async move { report::ask(&server, &token, &filter).await }));
                }
            }
        }
    }
}

async fn answer(asking: &mut Option<Asking>) -> Result<Report, NoAnswer> {
    match asking {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

async fn next(events: &mut mpsc::Receiver<io::Result<Event>>) -> io::Result<Event> {
    // The thread ends with the first error, which it sends.
    events.recv().await.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))
}

/// The events of the terminal, until reading it fails.
fn events() -> mpsc::Receiver<io::Result<Event>> {
    let (sender, receiver) = mpsc::channel(EVENTS_MAX);
    thread::spawn(move || {
        loop {
            let event = event::read();
            let is_last = event.is_err();
            if sender.blocking_send(event).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

/// A message for the first signal that ends the process.
fn ends() -> io::Result<mpsc::Receiver<()>> {
    let (sender, receiver) = mpsc::channel(1);
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()] {
        let (mut signal, sender) = (signal(kind)?, sender.clone());
        tokio::spawn(async move {
            signal.recv().await;
            let _ = sender.send(()).await;
        });
    }
    Ok(receiver)
}
