//! Returns memory that a thread has freed to the system.
//!
//! mimalloc returns memory while the thread allocates and frees. A thread without callers does neither. Not here: the
//! memory of callers (grpc, http).

/// If at least this many connections have ended in one tick, the next ticks return memory.
const ENDED_MIN: usize = 64;
/// If the reserved bytes have fallen by at least this much, the next ticks return memory.
const FREED_BYTES_MIN: usize = 1 << 20;
const GIVE_BACK_TICKS: u32 = 5;

/// Decides when the thread of a listener returns memory.
#[derive(Debug, Default)]
pub struct ThreadMemory {
    /// For how many more ticks memory is returned.
    ticks: u32,
    /// The most reserved bytes since memory was last returned.
    reserved_most: usize,
}

impl ThreadMemory {
    /// Begins the next tick, of about a second. `ended` is the number of connections that have ended since the last
    /// tick, and `reserved` the bytes reserved for callers. Call it on the thread that owns the memory.
    pub fn look(&mut self, ended: usize, reserved: usize) {
        self.reserved_most = self.reserved_most.max(reserved);
        if ended >= ENDED_MIN || self.reserved_most - reserved >= FREED_BYTES_MIN {
            (self.ticks, self.reserved_most) = (GIVE_BACK_TICKS, reserved);
        } else if self.ticks > 0 {
            self.ticks -= 1;
            give_back();
        }
    }

    /// Whether the next tick returns memory.
    pub fn gives_back(&self) -> bool {
        self.ticks > 0
    }
}

/// Makes the allocator search for free pages of this thread.
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

    /// The number of ticks after a change that return memory.
    fn ticks_after(ended: usize, reserved: usize) -> u32 {
        let mut memory = ThreadMemory::default();
        memory.look(0, FREED_BYTES_MIN);
        assert_eq!(memory.ticks, 0, "nothing was let go");
        memory.look(ended, reserved);
        let ticks = memory.ticks;
        for left in (0..ticks).rev() {
            memory.look(0, reserved);
            assert_eq!(memory.ticks, left);
        }
        memory.look(0, reserved);
        assert_eq!(memory.ticks, 0);
        ticks
    }

    #[test]
    fn memory_is_given_back_when_much_is_let_go() {
        for (ended, reserved, ticks) in [
            (0, FREED_BYTES_MIN, 0),
            (0, 1, 0),
            (ENDED_MIN - 1, FREED_BYTES_MIN, 0),
            (0, 0, GIVE_BACK_TICKS),
            (ENDED_MIN, FREED_BYTES_MIN, GIVE_BACK_TICKS),
            (ENDED_MIN, 2 * FREED_BYTES_MIN, GIVE_BACK_TICKS),
        ] {
            assert_eq!(ticks_after(ended, reserved), ticks, "{ended} ended, {reserved} bytes");
        }
    }
}
