//! Memory that a thread has freed goes back to the system.
//!
//! mimalloc gives it back while the thread allocates and frees. A thread whose callers have gone does neither. Not here: what
//! callers hold (grpc, http).

/// When so many connections have ended within one tick, memory is given back in the next ticks.
const ENDED_MIN: usize = 64;
/// The same, when connections hold so many bytes less than they did.
const LET_GO_BYTES_MIN: usize = 1 << 20;
/// In how many ticks.
const GIVE_BACK_TICKS: u32 = 5;

/// When the thread of a listener gives memory back.
#[derive(Debug, Default)]
pub struct ThreadMemory {
    /// In how many more ticks memory is given back.
    ticks: u32,
    /// The most bytes that connections held since memory was last given back.
    held_most: usize,
}

impl ThreadMemory {
    /// One tick later, of about a second: `ended` connections have ended since the last one, and connections hold `held` bytes.
    /// To be called on the thread whose memory it is.
    pub fn look(&mut self, ended: usize, held: usize) {
        self.held_most = self.held_most.max(held);
        if ended >= ENDED_MIN || self.held_most - held >= LET_GO_BYTES_MIN {
            (self.ticks, self.held_most) = (GIVE_BACK_TICKS, held);
        } else if self.ticks > 0 {
            self.ticks -= 1;
            give_back();
        }
    }

    /// Whether memory is given back in the next tick.
    #[must_use]
    pub fn gives_back(&self) -> bool {
        self.ticks > 0
    }
}

/// Lets the allocator look for pages of this thread that are free.
fn give_back() {
    const BLOCKS: usize = 64;
    for bytes in [64, 512, 4 * 1_024, 32 * 1_024, 256 * 1_024] {
        let blocks: Vec<Vec<u8>> = (0..BLOCKS).map(|_| Vec::with_capacity(bytes)).collect();
        drop(std::hint::black_box(blocks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In how many of the ticks after a change memory is given back.
    fn ticks_after(ended: usize, held: usize) -> u32 {
        let mut memory = ThreadMemory::default();
        memory.look(0, LET_GO_BYTES_MIN);
        assert_eq!(memory.ticks, 0, "nothing was let go");
        memory.look(ended, held);
        let ticks = memory.ticks;
        for left in (0..ticks).rev() {
            memory.look(0, held);
            assert_eq!(memory.ticks, left);
        }
        memory.look(0, held);
        assert_eq!(memory.ticks, 0);
        ticks
    }

    #[test]
    fn memory_is_given_back_when_much_is_let_go() {
        for (ended, held, ticks) in [
            (0, LET_GO_BYTES_MIN, 0),
            (0, 1, 0),
            (ENDED_MIN - 1, LET_GO_BYTES_MIN, 0),
            (0, 0, GIVE_BACK_TICKS),
            (ENDED_MIN, LET_GO_BYTES_MIN, GIVE_BACK_TICKS),
            (ENDED_MIN, 2 * LET_GO_BYTES_MIN, GIVE_BACK_TICKS),
        ] {
            assert_eq!(ticks_after(ended, held), ticks, "{ended} ended, {held} bytes");
        }
    }
}
