//! grpc.health.v1, for load balancers and kubelets.
//!
//! Follows the phases of the process. Not here: readiness (app).

use tokio::sync::watch;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use weir_lifecycle::{Life, Phase};

use super::service::SERVICE_NAME;

/// The names: the whole server, its one service, and envoyproxy/ratelimit's name.
const NAMES: [&str; 3] = ["", SERVICE_NAME, "ratelimit"];

/// The states that the health services of all runtimes answer from.
#[derive(Clone, Debug)]
pub struct Health(HealthReporter);

impl Health {
    pub async fn starting() -> Self {
        let health = Self(HealthReporter::new());
        health.set(ServingStatus::NotServing).await;
        health
    }

    pub fn service(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.0.clone()))
    }

    /// Reports each phase when it begins, and returns when draining begins. While weir is not `fit`, it reports
    /// NOT_SERVING.
    ///
    /// # Errors
    /// None; the type is that of a supervised task.
    pub async fn follow(mut self, life: Life, mut fit: watch::Receiver<bool>) -> Result<(), String> {
        life.reached(Phase::Serving).await;
        while life.phase() == Phase::Serving {
            let is_fit = *fit.borrow_and_update();
            self.set(if is_fit { ServingStatus::Serving } else { ServingStatus::NotServing }).await;
            tokio::select! {
                () = life.reached(Phase::Leaving) => {}
                // Fails only if the sender is dropped. The report of all listeners holds it.
                Ok(()) = fit.changed() => {}
            }
        }
        self.set(ServingStatus::NotServing).await;
        life.reached(Phase::Draining).await;
        // A watch keeps a stream open, which would delay the drain until its grace ends. Removing a name ends its
        // streams. Then the name is added again for single checks.
        for name in NAMES {
            self.0.clear_service_status(name).await;
        }
        self.set(ServingStatus::NotServing).await;
        Ok(())
    }

    async fn set(&self, status: ServingStatus) {
        for name in NAMES {
            self.0.set_service_status(name, status).await;
        }
    }
}
