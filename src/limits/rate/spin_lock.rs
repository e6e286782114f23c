//! A lock for a mutex that is contended and held for some tens of nanoseconds.

use std::hint::spin_loop;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::TryLockError;

/// The attempts before the thread sleeps. The pause doubles after each.
const SPIN_ATTEMPTS: u32 = 8;

/// The spins of the first pause: about as long as the lock is held.
const INITIAL_SPINS: u32 = 16;

/// Locks the mutex, with pauses while another thread holds it. Two threads that contend for its
/// cache line take three times as long for a decision as one alone (`benches/buckets.rs`).
pub fn spin_lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    for n in 0..SPIN_ATTEMPTS {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => (0..INITIAL_SPINS << n).for_each(|_| spin_loop()),
        }
    }
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
