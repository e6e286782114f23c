//! What stands for [connections](super::connection) in a build without the feature `shared-limits`: there
//! are none.

use crate::shared_limits::bucket::RefillAnswer;
use crate::shared_limits::script::ScriptCall;
use crate::shared_limits::server::{NO_CLIENT, SharedLimitsConfig};

pub(super) enum SharedConnection {}

impl SharedConnection {
    pub(super) async fn open(_config: &SharedLimitsConfig) -> Result<Self, String> {
        Err(NO_CLIENT.to_owned())
    }

    pub(super) async fn heartbeat(&mut self, _name: &str, _member: &str) -> Result<u32, String> {
        match *self {}
    }

    pub(super) async fn refill(
        &mut self,
        _calls: &[ScriptCall],
    ) -> Result<Vec<RefillAnswer>, String> {
        match *self {}
    }
}
