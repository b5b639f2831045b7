//! What `tracing` and `metrics` are told. The threads of workers are their own, so the subscriber and the recorder are
//! those of the whole process, and hear the other tests too. What belongs to this one is told by its kind.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use metrics_exporter_prometheus::PrometheusBuilder;
use tickwheel::Scheduler;
use tickwheel_durable::{Failure, NewTimer, Retry, Timers};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use super::common::{self, until};

/// No other test has timers of this kind.
const KIND: &str = "observed mail";

/// Notes spans and events of the kind.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<String>>>);

impl Ear {
    fn hear(&self, Fields(line): Fields) {
        if line.contains(KIND) {
            self.0.lock().expect("no panic").push(line);
        }
    }
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        _ = write!(self.0, " {field}={value:?}");
    }
}

impl<S: Subscriber> Layer<S> for Ear {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        let mut fields = Fields(format!("span {}", attributes.metadata().name()));
        attributes.record(&mut fields);
        self.hear(fields);
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields(event.metadata().level().to_string());
        event.record(&mut fields);
        self.hear(fields);
    }
}

#[test]
fn spans_events_and_metrics_tell_what_a_worker_does() {
    let ear = Ear::default();
    let subscriber = tracing_subscriber::registry().with(ear.clone());
    tracing::subscriber::set_global_default(subscriber).expect("the first");
    let prometheus = PrometheusBuilder::new().install_recorder().expect("the first");

    let timers = Timers::open("sqlite::memory:").expect("it opens");
    let retry = Retry::attempts(2).gaps(Duration::from_millis(1), 1.0, Duration::from_millis(1));
    let was_put_off = AtomicBool::new(false);
    let worker = timers
        .worker()
        .handle(KIND, move |run| match run.key() {
            "put off" if !was_put_off.swap(true, Ordering::Relaxed) => {
                Err(Failure::snooze(Duration::from_millis(5)))
            }
            "good" | "put off" => Ok(()),
            "hangs" => {
                tickwheel::future::block_on(run.cancelled());
                Ok(())
            }
            _ => Err(Failure::new("no luck")),
        })
        .retry(retry)
        .continue_trace({
            let heard = ear.0.clone();
            move |trace, span| {
                let line = format!(
                    "continues {trace} {KIND} {:?}",
                    span.metadata().map(tracing::Metadata::name)
                );
                heard.lock().expect("no panic").push(line);
                assert_eq!(trace, "00-good", "a panic of the hook does no harm");
            }
        })
        .on_error(|_| {})
        .start(Scheduler::global())
        .expect("it starts");
    let new = |key: &str| NewTimer::new(KIND, key, Duration::ZERO);
    timers.schedule(&new("good").trace("00-good")).expect("scheduled");
    timers.schedule(&new("bad").trace("00-bad")).expect("scheduled");
    timers.schedule(&NewTimer::new(KIND, "far", Duration::from_secs(60))).expect("scheduled");
    timers.schedule(&NewTimer::new(KIND, "put off", Duration::ZERO)).expect("scheduled");
    let hangs = NewTimer::new(KIND, "hangs", Duration::ZERO).time_limit(Duration::from_millis(9));
    timers.schedule(&hangs.max_attempts(1)).expect("scheduled");
    let a_year_ago = SystemTime::now() - Duration::from_secs(366 * 86_400);
    let yearly = NewTimer::new(KIND, "late", a_year_ago).rule("cron: @yearly; missed=skip");
    timers.schedule(&yearly).expect("scheduled");
    until("all are over", || {
        let stats = worker.stats();
        stats.done == 2
            && stats.dead == 2
            && stats.skipped == 1
            && stats.running == 0
            && stats.stuck == 0
    });
    assert!(worker.stop(common::PATIENCE)); // so the gauge is what it stays

    let heard = ear.0.lock().expect("no panic").clone();
    let has = |parts: &[&str]| {
        let found =
            heard.iter().filter(|line| parts.iter().all(|part| line.contains(part))).count();
        assert_eq!(found, 1, "{parts:?} in {heard:#?}");
    };
    has(&["span tickwheel.timer", "key=\"good\"", "attempt=1", "fence=", "trace=\"00-good\""]);
    has(&["continues 00-good", "Some(\"tickwheel.timer\")"]);
    has(&["span tickwheel.timer", "key=\"bad\"", "attempt=2"]);
    has(&["WARN", "is tried again", "key=\"bad\"", "attempt=1", "reason=\"no luck\""]);
    has(&["ERROR", "is dead", "key=\"bad\"", "attempt=2"]);
    has(&["WARN", "has met an error", "exceeded its time limit of 9ms", "hangs", "has failed"]);
    has(&["WARN", "is skipped", "key=\"late\"", "due="]);

    timers.counts().expect("counts");
    let text = prometheus.render();
    let shows =
        |line: &str| assert!(text.lines().any(|other| other == line), "no {line:?} in:\n{text}");
    let claims = "tickwheel_durable_claims_total{kind=\"observed mail\"} ";
    let claims = text.lines().find_map(|line| line.strip_prefix(claims)).expect("claims");
    assert!((2..100).contains(&claims.parse::<u64>().expect("a number")), "{claims}");
    assert!(worker.stats().claims >= 2);
    shows("tickwheel_durable_runs_total{kind=\"observed mail\"} 6");
    shows("tickwheel_durable_failed_total{kind=\"observed mail\"} 3");
    shows("tickwheel_durable_dead_total{kind=\"observed mail\"} 2");
    shows("tickwheel_durable_snoozed_total{kind=\"observed mail\"} 1");
    shows("tickwheel_durable_skipped_total{kind=\"observed mail\"} 1");
    shows("tickwheel_durable_timed_out_total{kind=\"observed mail\"} 1");
    shows("tickwheel_durable_stuck{kind=\"observed mail\"} 0");
    shows("tickwheel_durable_lateness_seconds_count{kind=\"observed mail\"} 6");
    shows("tickwheel_durable_run_seconds_count{kind=\"observed mail\"} 6");
    shows("tickwheel_durable_timers{kind=\"observed mail\",state=\"waiting\"} 2");
    shows("tickwheel_durable_timers{kind=\"observed mail\",state=\"dead\"} 2");
    shows("tickwheel_durable_lag_seconds{kind=\"observed mail\"} 0");
}
