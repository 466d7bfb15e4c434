//! Puts the resources of a control plane in force, with the overlays of a file.
//!
//! Resources and overlays change at different times. Only a pair that fits is in force: weir refuses a response that contradicts
//! the overlays, and overlays that contradict the last response. Not here: the client (xds), and the meaning of resources
//! (xds/resource.rs).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use parking_lot::Mutex;
use weir_http::PolicyProblems;
use weir_lifecycle::{Life, Reloads};
use weir_policies::{Dialect, Loaded, OverlayFile, Problems, Reading};
use weir_telemetry::metrics::LimitSource;
use weir_xds::{Resource, UnknownFields};

use super::AppError;
use super::policies;
use super::watched::{Cause, WatchedFile, follow};

pub(super) struct PolicyTarget {
    pub(super) load: policies::Target,
    dialect: Dialect,
    response_bytes_max: usize,
    /// None: the settings name no file of overlays. Locked while policies are read, so that they change one at a time.
    overlaid: Option<Mutex<Overlaid>>,
    is_overlay_refused: Arc<AtomicBool>,
}

struct Overlaid {
    /// The overlays in force.
    good: OverlayFile,
    refused: Option<Refused>,
    /// The problems of the newest response, if it is not in force.
    refused_response: Option<PolicyProblems>,
    /// The last good resources.
    resources: Option<Vec<Resource>>,
}

/// The newest overlays, which are not in force.
struct Refused {
    /// None if they are wrong by themselves. Others can fit a later response.
    overlay: Option<OverlayFile>,
    problems: PolicyProblems,
}

/// Watches the file of overlays.
pub(super) struct OverlayWatch(WatchedFile);

impl PolicyTarget {
    /// Reads the overlays that the settings name.
    ///
    /// # Errors
    /// All problems of the overlays.
    pub(super) fn new(
        settings: &weir_settings::Policies,
        load: policies::Target,
    ) -> Result<(Arc<Self>, Option<OverlayWatch>), AppError> {
        let mut watch = None;
        let mut overlaid = None;
        if let Some(path) = settings.overlay.clone() {
            // The watch starts before the file is read, so that no change is missed.
            watch = Some(OverlayWatch(WatchedFile::new(path.clone())));
            let read = OverlayFile::read(&path);
            let good = read.map_err(|problems| AppError::Policies(policies::of_load(&problems).lines()))?;
            overlaid = Some(Mutex::new(Overlaid { good, refused: None, refused_response: None, resources: None }));
        }
        let is_overlay_refused = Arc::<AtomicBool>::default();
        if overlaid.is_some() {
            load.metrics.show("weir_input_refused", &["policies"], &is_overlay_refused, |refused| {
                u64::from(refused.load(Relaxed))
            });
        }
        let (dialect, response_bytes_max) = (Dialect::of(settings), settings.xds.max_message_bytes);
        Ok((Arc::new(Self { load, dialect, response_bytes_max, overlaid, is_overlay_refused }), watch))
    }

    /// Applies all of these resources, or none.
    ///
    /// # Errors
    /// All problems, with one text for each.
    pub(super) fn put(&self, resources: &[Resource]) -> Result<(), Vec<String>> {
        let started = Instant::now();
        let mut overlaid = self.overlaid.as_ref().map(Mutex::lock);
        let loaded = match self.fitting(resources, overlaid.as_deref_mut()) {
            Ok(loaded) => loaded,
            Err(problems) => {
                let problems = policies::of_load(&problems);
                // The subscription logs them, once for each version.
                self.load.count_refused(problems.clone());
                if let Some(overlaid) = &mut overlaid {
                    overlaid.refused_response = Some(problems.clone());
                }
                return Err(problems.lines());
            }
        };
        if let Some(UnknownFields { messages, message, field }) = weir_xds::resource::unknown_fields(resources) {
            self.load.metrics.unknown_limit_fields(LimitSource::Xds, messages, message, field);
        }
        self.load.put_in_force(policies::fit(loaded, started));
        if let Some(overlaid) = &mut overlaid {
            overlaid.resources = Some(resources.to_vec());
            overlaid.refused_response = None;
            self.is_overlay_refused.store(overlaid.refused.is_some(), Relaxed);
            if let Some(Refused { problems, .. }) = &overlaid.refused {
                self.load.report.refused(problems.clone());
            }
        }
        Ok(())
    }

    /// The policies of resources with the newest overlays that fit them.
    fn fitting(&self, resources: &[Resource], overlaid: Option<&mut Overlaid>) -> Result<Loaded, Problems> {
        let Some(overlaid) = overlaid else { return self.read(resources, None) };
        let newest = overlaid.refused.as_ref().and_then(|refused| refused.overlay.clone());
        if let Some(newest) = newest
            && let Ok(loaded) = self.read(resources, Some(&newest))
        {
            (overlaid.good, overlaid.refused) = (newest, None);
            return Ok(loaded);
        }
        self.read(resources, Some(&overlaid.good))
    }

    fn read(&self, resources: &[Resource], overlay: Option<&OverlayFile>) -> Result<Loaded, Problems> {
        let reading = Reading { dialect: self.dialect, overlay: overlay.cloned() };
        weir_xds::resource::policies(resources, self.response_bytes_max, reading)
    }

    /// Applies newer overlays to the last resources, or logs their problems and keeps the overlays in force.
    /// A file that keeps changing (`is_restless`) is shown, and is no load.
    fn put_overlay(&self, overlay: Result<OverlayFile, Problems>, is_restless: bool) {
        let started = Instant::now();
        let Some(overlaid) = &self.overlaid else { return };
        let overlaid = &mut *overlaid.lock();
        let loaded = match (&overlay, &overlaid.resources) {
            (Err(problems), _) => Err(problems.clone()),
            (Ok(_), None) => Ok(None),
            (Ok(overlay), Some(resources)) => self.read(resources, Some(overlay)).map(Some),
        };
        let before = overlaid.refused.take();
        match (loaded, overlay) {
            (Ok(loaded), Ok(overlay)) => {
                overlaid.good = overlay;
                // The newest response stays refused until the control plane sends it again.
                let of_response = overlaid.refused_response.clone().unwrap_or_default();
                match (loaded, before) {
                    (Some(loaded), _) => {
                        self.load.put_in_force(policies::fit(loaded, started));
                        self.load.report.refused(of_response);
                    }
                    (None, Some(before)) => self.load.report.mended(&before.problems, of_response),
                    (None, None) => {}
                }
            }
            (Err(problems), overlay) => {
                let problems = policies::of_load(&problems);
                if is_restless {
                    self.load.report.refused(problems.clone());
                } else {
                    self.load.refuse(&problems);
                }
                // A file that cannot be read, or keeps changing, leaves the overlays that wait for a response that fits them.
                let overlay = overlay.ok().or_else(|| before.and_then(|refused| refused.overlay));
                overlaid.refused = Some(Refused { overlay, problems });
            }
            // Overlays that cannot be read have no policies.
            (Ok(_), Err(_)) => {}
        }
        self.is_overlay_refused.store(overlaid.refused.is_some(), Relaxed);
    }
}

impl OverlayWatch {
    /// Applies every change of the file.
    pub(super) async fn follow(self, target: Arc<PolicyTarget>, reloads: Reloads, life: Life) -> Result<(), String> {
        let path = self.0.path.clone();
        let of_thread = target.clone();
        let look = move |watch: &mut Self, cause| watch.look(cause, &of_thread);
        follow(self, look, policies::in_read_time(&path, &target.load), reloads, life).await
    }

    fn look(&mut self, cause: Cause, target: &PolicyTarget) {
        if let Some(overlay) = self.0.read_again(cause, OverlayFile::read) {
            target.put_overlay(overlay, self.0.is_restless);
        }
    }
}
