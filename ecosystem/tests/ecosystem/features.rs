//! The features: executors of tokio and rayon, hyper's timer, spans and events, metrics.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{panic_on_purpose, silence, until};
use tickwheel::pool::ScheduledThreadPool;
use tickwheel::{DueTask, Executor, PanicHook, Rejected, Scheduler};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// The name of the thread on which a task of this executor runs.
fn runs_on(executor: impl Executor) -> String {
    let scheduler = Scheduler::builder().executor(executor).build().expect("good settings");
    let (sender, receiver) = mpsc::channel();
    let task = move || drop(sender.send(thread::current().name().map(str::to_owned)));
    scheduler.schedule_once(MILLI, task).expect("open");
    receiver.recv().expect("it runs").unwrap_or_default()
}

/// A panic is counted, a cancel drops its closure, and an executor that takes many tasks loses none.
fn keeps_the_promises(executor: impl Executor) {
    silence();
    let scheduler = Scheduler::builder().executor(executor).build().expect("good settings");
    let runs = Arc::new(AtomicUsize::new(0));
    for n in 0..2_000_u32 {
        let count = Arc::clone(&runs);
        let task = move || {
            count.fetch_add(1, Ordering::Relaxed);
            if n % 100 == 0 {
                panic_on_purpose();
            }
        };
        scheduler.schedule_once(MILLI * (n % 20), task).expect("open");
    }
    scheduler.schedule_once(SECOND * 3600, || ()).expect("open").cancel();
    until("all have run", || runs.load(Ordering::Relaxed) == 2_000);
    until("all are counted", || scheduler.stats().panicked() == 20);
    let stats = scheduler.stats();
    assert_eq!((stats.fired(), stats.cancelled(), stats.pending()), (2_000, 1, 0));
}

mod on_tokio {
    use super::*;
    use tickwheel::TokioBlocking;
    use tokio::runtime::Runtime;

    fn runtime() -> Runtime {
        let builder = &mut tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).thread_name("of-the-runtime").build().expect("a runtime")
    }

    #[test]
    fn tasks_run_on_the_runtime() {
        let runtime = runtime();
        assert_eq!(runs_on(runtime.handle().clone()), "of-the-runtime");
        keeps_the_promises(runtime.handle().clone());
        keeps_the_promises(TokioBlocking::new(runtime.handle().clone()));
    }

    /// One thread turns the runtime, and only waits.
    #[test]
    fn what_blocks_does_not_hold_up_the_runtime() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let blocking = TokioBlocking::new(runtime.handle().clone());
        let scheduler = Scheduler::builder().executor(blocking).build().expect("good settings");
        let (sender, receiver) = mpsc::channel();
        let (release, wait) = mpsc::channel::<()>();
        scheduler.schedule_once(MILLI, move || _ = wait.recv()).expect("open");
        scheduler.schedule_once(MILLI * 2, move || _ = sender.send(())).expect("open");
        receiver.recv_timeout(crate::common::PATIENCE).expect("it runs beside the one that blocks");
        drop(release);
    }

    #[test]
    fn s20_what_a_runtime_drops_is_counted() {
        let runtime = runtime();
        let scheduler = Scheduler::builder().executor(runtime.handle().clone()).build();
        let scheduler = scheduler.expect("good settings");
        runtime.shutdown_timeout(SECOND);
        scheduler.schedule_once(MILLI, || unreachable!("the runtime is gone")).expect("open");
        until("it is dropped", || scheduler.stats().dropped() == 1);
        assert_eq!(scheduler.pending(), 0);
    }
}

#[test]
fn tasks_run_on_a_rayon_pool() {
    let builder = rayon::ThreadPoolBuilder::new().num_threads(2);
    let pool = Arc::new(builder.thread_name(|_| "of-the-pool".into()).build().expect("a pool"));
    assert_eq!(runs_on(Arc::clone(&pool)), "of-the-pool");
    keeps_the_promises(pool);
}

mod metrics_of_prometheus {
    use super::*;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use tickwheel::MetricsReporter;

    #[test]
    fn a_scheduler_shows_in_prometheus() {
        silence();
        let recorder = PrometheusBuilder::new()
            .set_buckets(&[0.001, 0.01, 0.1])
            .expect("buckets")
            .build_recorder();
        let prometheus = recorder.handle();
        let (scheduler, driver) = Scheduler::builder()
            .tick(MILLI * 10)
            .on_panic(|_| ())
            .build_driven()
            .expect("good settings");
        let mut reporter =
            metrics::with_local_recorder(&recorder, || MetricsReporter::new(&scheduler, "tests"));
        let shows = |line: &str| {
            let text = prometheus.render();
            assert!(text.lines().any(|other| other == line), "no {line:?} in:\n{text}");
        };
        for n in 0..10_u32 {
            let task = move || assert!(n != 3, "on purpose");
            scheduler.schedule_once(MILLI * (10 * n + 4), task).expect("open");
        }
        scheduler.schedule_once(SECOND * 3600, || ()).expect("open");
        scheduler.schedule_once(SECOND * 3600, || ()).expect("open").cancel();
        driver.advance(SECOND);
        assert!(reporter.report());
        shows("tickwheel_scheduled_total{scheduler=\"tests\"} 12");
        shows("tickwheel_fired_total{scheduler=\"tests\"} 10");
        shows("tickwheel_cancelled_total{scheduler=\"tests\"} 1");
        shows("tickwheel_panicked_total{scheduler=\"tests\"} 1");
        shows("tickwheel_pending{scheduler=\"tests\"} 1");
        shows("# TYPE tickwheel_lateness_seconds histogram");
        // Each was six milliseconds late, by its tick.
        shows("tickwheel_lateness_seconds_bucket{scheduler=\"tests\",le=\"0.001\"} 0");
        shows("tickwheel_lateness_seconds_bucket{scheduler=\"tests\",le=\"0.01\"} 10");
        shows("tickwheel_lateness_seconds_count{scheduler=\"tests\"} 10");

        // A second report adds what is new, and no more.
        scheduler.schedule_once(MILLI * 4, || ()).expect("open");
        driver.advance(SECOND);
        assert!(reporter.report() && reporter.report());
        shows("tickwheel_lateness_seconds_count{scheduler=\"tests\"} 11");
        shows("tickwheel_fired_total{scheduler=\"tests\"} 11");
        drop((scheduler, driver));
        assert!(!reporter.report(), "it keeps nothing alive");
    }

    #[test]
    fn a_report_is_made_every_period_until_the_scheduler_is_gone() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let prometheus = recorder.handle();
        let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
        let handle = metrics::with_local_recorder(&recorder, || {
            MetricsReporter::new(&scheduler, "tests").every(SECOND).expect("open")
        });
        driver.advance(SECOND * 5);
        assert!(prometheus.render().contains("tickwheel_fired_total{scheduler=\"tests\"} 6"));
        drop(scheduler);
        driver.advance(SECOND);
        assert!(handle.is_done());
    }
}

mod spans {
    use super::*;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id};
    use tracing::{Event, Span, Subscriber};
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
    use tracing_subscriber::registry::LookupSpan;

    /// A subscriber that notes spans and events.
    #[derive(Clone, Default)]
    struct Ear(Arc<Mutex<Vec<String>>>);

    impl Ear {
        fn note(&self, text: String) {
            self.0.lock().expect("no panic").push(text);
        }

        fn heard(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().expect("no panic"))
        }
    }

    struct Fields(String);

    impl Visit for Fields {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            use std::fmt::Write;
            let _ = write!(self.0, " {field}={value:?}");
        }
    }

    impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Ear {
        fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
            let parent =
                context.span(id).and_then(|span| span.parent().map(|parent| parent.name()));
            self.note(format!(
                "new {} in {}",
                attributes.metadata().name(),
                parent.unwrap_or("none")
            ));
        }

        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let mut fields = Fields(String::new());
            event.record(&mut fields);
            self.note(format!(
                "{} {}{}",
                event.metadata().level(),
                event.metadata().target(),
                fields.0
            ));
        }

        fn on_close(&self, id: Id, context: Context<'_, S>) {
            let name = context.span(&id).map_or("?", |span| span.name());
            self.note(format!("closed {name}"));
        }
    }

    fn listening(work: impl FnOnce(&Ear)) {
        let ear = Ear::default();
        let subscriber = tracing_subscriber::registry().with(ear.clone());
        tracing::subscriber::with_default(subscriber, || work(&ear));
    }

    fn name_of_span() -> &'static str {
        Span::current().metadata().map_or("none", |metadata| metadata.name())
    }

    #[test]
    fn a_one_shot_runs_in_the_span_where_it_was_scheduled() {
        listening(|ear| {
            let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
            let seen = Arc::new(Mutex::new(Vec::new()));
            let look = || {
                let seen = Arc::clone(&seen);
                move || seen.lock().expect("no panic").push(name_of_span())
            };
            tracing::info_span!("request").in_scope(|| {
                scheduler.schedule_once(MILLI, look()).expect("open");
                scheduler.schedule_at(scheduler.now() + MILLI * 2, look()).expect("open");
                scheduler.try_schedule_once(MILLI * 3, look()).expect("open");
                scheduler.schedule_once(SECOND, look()).expect("open").cancel();
            });
            scheduler.schedule_once(MILLI * 4, look()).expect("open");
            assert_eq!(ear.heard(), ["new request in none"], "the tasks hold it");
            tracing::info_span!("test").in_scope(|| driver.advance(MILLI * 3));
            assert_eq!(ear.heard(), ["new test in none", "closed request", "closed test"]);
            driver.advance(SECOND);
            assert_eq!(*seen.lock().expect("no panic"), ["request", "request", "request", "none"]);
        });
    }

    #[test]
    fn a_pool_runs_a_one_shot_in_its_span_and_each_run_of_a_series_in_a_root_span() {
        listening(|ear| {
            let here = tracing::dispatcher::get_default(Clone::clone);
            let pool =
                ScheduledThreadPool::builder().threads(1).thread_factory(move |builder, work| {
                    let here = here.clone();
                    builder.spawn(move || tracing::dispatcher::with_default(&here, work)).map(drop)
                });
            let pool = pool.build().expect("good settings");
            let in_span = tracing::info_span!("request").in_scope(|| pool.submit(name_of_span));
            assert_eq!(in_span.expect("open").join().expect("it runs"), "request");
            assert_eq!(ear.heard(), ["new request in none", "closed request"]);
            let (sender, receiver) = mpsc::channel();
            let series = tracing::info_span!("request").in_scope(|| {
                pool.schedule_with_fixed_delay(MILLI, MILLI, move || {
                    sender
                        .send(name_of_span())
                        .map_or(ControlFlow::Break(()), |()| ControlFlow::Continue(()))
                })
            });
            assert_eq!(receiver.recv(), Ok("tickwheel.run"));
            series.expect("open").cancel();
        });
    }

    /// Panics when it is told this of a span.
    struct Rude(&'static str);

    impl Rude {
        fn hear(&self, what: &str) {
            if self.0 == what {
                panic_on_purpose();
            }
        }
    }

    impl<S: Subscriber> Layer<S> for Rude {
        fn on_new_span(&self, _: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
            self.hear("new");
        }

        fn on_enter(&self, _: &Id, _: Context<'_, S>) {
            self.hear("enter");
        }

        fn on_exit(&self, _: &Id, _: Context<'_, S>) {
            self.hear("exit");
        }
    }

    #[test]
    fn s17_a_subscriber_that_panics_ends_a_series_of_a_pool_and_nothing_else() {
        silence();
        for what in ["new", "enter", "exit"] {
            let rude = tracing::Dispatch::new(tracing_subscriber::registry().with(Rude(what)));
            let after = Arc::new(AtomicUsize::new(0));
            let panicked = Arc::clone(&after);
            let pool = ScheduledThreadPool::builder().threads(1).max_pending(1);
            let pool = pool.thread_factory(move |builder, work| {
                let rude = rude.clone();
                builder.spawn(move || tracing::dispatcher::with_default(&rude, work)).map(drop)
            });
            let told = move |_name: &str, has_panicked: bool| {
                panicked.fetch_add(has_panicked.into(), Ordering::Relaxed);
            };
            let pool = pool.after_execute(told).build().expect("good settings");
            let series = pool.schedule_with_fixed_delay(MILLI, MILLI, || ()).expect("open");
            let end = series.join_timeout(crate::common::PATIENCE).expect("it ends");
            assert!(end.expect_err("it has failed").is_panic(), "{what}");
            assert_eq!(after.load(Ordering::Relaxed), 1, "{what}");
            assert_eq!(pool.submit(|| 7).expect("its place is free").join().expect("it runs"), 7);
        }
    }

    #[test]
    fn a_refused_task_comes_back_out_of_its_span() {
        listening(|_| {
            let (scheduler, _driver) = Scheduler::builder().build_driven().expect("good settings");
            drop(scheduler.close());
            let (sender, receiver) = mpsc::channel();
            let refused = tracing::info_span!("request")
                .in_scope(|| scheduler.try_schedule_once(MILLI, move || _ = sender.send(7)));
            refused.expect_err("closed").into_task()();
            assert_eq!(receiver.recv(), Ok(7));
        });
    }

    #[test]
    fn each_run_of_a_series_has_a_root_span_of_its_own() {
        listening(|ear| {
            let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
            tracing::info_span!("request").in_scope(|| {
                scheduler
                    .schedule_repeatedly(MILLI, MILLI, || {
                        tracing::info_span!("work").in_scope(|| ());
                    })
                    .expect("open");
            });
            assert_eq!(ear.heard(), ["new request in none", "closed request"]);
            // The span of the thread that turns the driver does not grow either.
            let turning = tracing::info_span!("turning");
            turning.in_scope(|| driver.advance(MILLI * 2));
            assert_eq!(ear.0.lock().expect("no panic").remove(0), "new turning in none");
            let run = [
                "new tickwheel.run in none",
                "new work in tickwheel.run",
                "closed work",
                "closed tickwheel.run",
            ];
            assert_eq!(ear.heard(), [run, run].concat());
        });
    }

    #[test]
    fn panics_and_rejections_are_events() {
        /// Takes nothing the first time.
        struct Shy(AtomicUsize);
        impl Executor for Shy {
            fn execute(&self, task: DueTask) -> Result<(), Rejected> {
                if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
                    return Err(Rejected::new(task));
                }
                task.run();
                Ok(())
            }
        }
        silence();
        listening(|ear| {
            let (scheduler, driver) = Scheduler::builder()
                .executor(Shy(AtomicUsize::new(0)))
                .on_panic(|_| ())
                .build_driven()
                .expect("good settings");
            scheduler.schedule_once(MILLI, || panic_on_purpose()).expect("open");
            driver.advance(SECOND);
            let heard = ear.heard();
            assert_eq!(heard.len(), 2, "{heard:?}");
            assert!(
                heard[0].starts_with("WARN tickwheel") && heard[0].contains("tasks=1"),
                "{heard:?}"
            );
            assert!(heard[1].starts_with("ERROR tickwheel"), "{heard:?}");
            assert!(heard[1].contains("on purpose"), "{heard:?}");
        });
    }

    /// A subscriber is user code too.
    #[test]
    fn s31_the_event_of_a_panic_names_the_task() {
        listening(|ear| {
            let hook = PanicHook::default();
            hook.report("ecosystem::a_task", Box::new("on purpose"));
            hook.report(None, Box::new("on purpose"));
            let heard = ear.heard();
            assert_eq!(heard.len(), 2, "{heard:?}");
            assert!(heard[0].starts_with("ERROR tickwheel"), "{heard:?}");
            assert!(heard[0].contains("task=\"ecosystem::a_task\""), "{heard:?}");
            assert!(heard[0].contains("panic=\"on purpose\""), "{heard:?}");
            assert!(!heard[1].contains("task="), "a name that is not known is left out: {heard:?}");
        });
    }

    #[test]
    fn s17_a_subscriber_that_panics_takes_nobody_along() {
        struct Loud;
        impl<S: Subscriber> Layer<S> for Loud {
            fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
                panic_on_purpose();
            }
        }
        silence();
        let subscriber = tracing_subscriber::registry().with(Loud);
        tracing::subscriber::with_default(subscriber, || {
            let builder = Scheduler::builder().on_panic(|_| ());
            let (scheduler, driver) = builder.build_driven().expect("good settings");
            for _ in 0..3 {
                scheduler.schedule_once(MILLI, || panic_on_purpose()).expect("open");
            }
            driver.advance(SECOND);
            assert_eq!(scheduler.stats().panicked(), 3);
        });
    }
}

mod with_hyper {
    use super::*;
    use http_body_util::{Empty, Full};
    use hyper::body::{Bytes, Incoming};
    use hyper::rt::{ReadBufCursor, Timer};
    use hyper::{Request, Response};
    use std::convert::Infallible;
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};
    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
    use tokio::net::{TcpListener, TcpStream};

    /// Adapts a stream of tokio to the traits of hyper.
    struct Io(TcpStream);

    impl hyper::rt::Read for Io {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            mut into: ReadBufCursor<'_>,
        ) -> Poll<io::Result<()>> {
            let mut bytes = [0; 4096];
            let room = into.remaining().min(bytes.len());
            let mut buffer = ReadBuf::new(&mut bytes[..room]);
            ready!(Pin::new(&mut self.0).poll_read(context, &mut buffer))?;
            into.put_slice(buffer.filled());
            Poll::Ready(Ok(()))
        }
    }

    impl hyper::rt::Write for Io {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(context, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(context)
        }

        fn poll_shutdown(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(context)
        }
    }

    async fn answer(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        Ok(Response::new(Full::new(Bytes::from_static(b"hello"))))
    }

    async fn serve(listener: TcpListener, scheduler: Scheduler, timeout: Duration) {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let mut server = hyper::server::conn::http1::Builder::new();
            server.timer(scheduler.clone()).header_read_timeout(timeout);
            let connection =
                server.serve_connection(Io(stream), hyper::service::service_fn(answer));
            tokio::spawn(async move { drop(connection.await) });
        }
    }

    #[test]
    fn a_header_that_does_not_come_is_not_waited_for() {
        const TIMEOUT: Duration = Duration::from_millis(100);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let scheduler = Scheduler::new();
        runtime.expect("a runtime").block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("an address");
            tokio::spawn(serve(listener, scheduler.clone(), TIMEOUT));

            // A client that sends a request gets an answer.
            let stream = TcpStream::connect(address).await.expect("it listens");
            let (mut client, connection) =
                hyper::client::conn::http1::handshake::<_, Empty<Bytes>>(Io(stream))
                    .await
                    .expect("hyper");
            tokio::spawn(async move { drop(connection.await) });
            let request =
                Request::get("/").header("host", "here").body(Empty::new()).expect("good");
            let response = client.send_request(request).await.expect("an answer");
            assert!(response.status().is_success());

            // If a client does not finish its request, a timer closes the connection.
            let fired = scheduler.stats().fired();
            let start = Instant::now();
            let mut slow = TcpStream::connect(address).await.expect("it listens");
            slow.write_all(b"GET / HTTP/1.1\r\nhost: he").await.expect("it is read");
            let mut rest = Vec::new();
            let read = scheduler.timeout(SECOND * 60, slow.read_to_end(&mut rest)).await;
            drop(read.expect("it does not take a minute"));
            assert!(start.elapsed() >= TIMEOUT, "after {:?}", start.elapsed());
            assert!(scheduler.stats().fired() > fired);
        });
    }

    #[test]
    fn a_sleep_of_hyper_is_moved_in_place_and_never_hangs() {
        let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
        let timer: &dyn Timer = &scheduler;
        assert_eq!(timer.now(), scheduler.now());
        let task = crate::common::told::Poller::new();
        let mut sleep = timer.sleep(SECOND);
        let place = std::ptr::from_ref(&*sleep).cast::<()>();
        assert!(task.poll(&mut sleep).is_pending());
        timer.reset(&mut sleep, scheduler.now() + MILLI);
        assert_eq!(std::ptr::from_ref(&*sleep).cast::<()>(), place, "the same box");
        driver.advance(MILLI);
        assert!(task.poll(&mut sleep).is_ready());
        let mut left = timer.sleep_until(scheduler.now() + MILLI * 5);
        assert!(task.poll(&mut left).is_pending());
        drop(driver);
        tickwheel::future::block_on(left);
    }
}
