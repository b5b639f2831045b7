//! What is typed: the commands and their arguments. The comments are the text of `--help`.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::{Args, Parser, Subcommand, ValueEnum};
use tickwheel_durable as durable;

use crate::times::{self, Limit};

const EXAMPLES: &str = "\
Examples:
  export DATABASE_URL=postgres://user:password@host/shop   # or sqlite:shop.db
  tickwheel-durable migrate
  tickwheel-durable schedule mail 4711 --after 30m --payload 'two pears'
  tickwheel-durable list --kind mail --state dead
  tickwheel-durable list --all --json | jq -r 'select(.attempts > 3) | .key'
  tickwheel-durable requeue --kind mail --all
  tickwheel-durable top

Exit codes:
  0 done   1 nothing is there, or nothing was changed   2 the call is wrong
  3 the database is away or busy   4 it refuses: no such file, database or
  role, no rights, no tables, tables of another version
  5 the output could not be written   130 interrupted";

const DATABASE: &str = "\
Where the timers are: sqlite:path or postgres://user:password@host/database?schema=name. Several \
are the shards of one store, in their order. In the environment, other users of the machine cannot \
read the password";

const EVERYWHERE: &str = "For every command";

/// Timers that survive their process: look at them and change them
#[derive(Parser)]
#[command(name = "tickwheel-durable", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Arguments {
    #[arg(
        long,
        global = true,
        env = "DATABASE_URL",
        hide_env_values = true,
        value_name = "URL",
        help = DATABASE,
        help_heading = EVERYWHERE
    )]
    pub(crate) database: Vec<String>,
    /// Print JSON, one object on a line, instead of tables
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make the tables, or bring those of an earlier version up to date
    Migrate(Migrate),
    /// List timers by kind, then by the time at which they wake, the dead ones last
    List(List),
    /// Show all of one timer, with its last attempts if its worker keeps a history
    Show(Show),
    /// Schedule a timer, now or later. One with its kind and key is replaced
    Schedule(Box<Schedule>),
    /// Move a timer that waits, with all its attempts before it. Without a time it is due now
    Reset(Reset),
    /// Cancel one timer, or many
    #[command(
        override_usage = "tickwheel-durable cancel <KIND> <KEY>\n       tickwheel-durable cancel --kind <KIND> --all [OPTIONS]"
    )]
    Cancel(Cancel),
    /// Make a dead timer wait again, with all its attempts before it, or all of a kind
    #[command(
        override_usage = "tickwheel-durable requeue <KIND> <KEY> [OPTIONS]\n       tickwheel-durable requeue --kind <KIND> --all [OPTIONS]"
    )]
    Requeue(Requeue),
    /// Change the payload of a timer that waits or is dead
    SetPayload(SetPayload),
    /// List attempts, the newest first, of workers that keep a history
    History(History),
    /// Count the timers of each kind, with the lag and the pace. It reads the whole table
    Counts,
    /// Watch kinds and what is due next. Without a terminal it is shown once
    Top(Top),
    /// Measure how late and how fast timers of a kind of its own run in this process. It removes them again
    Bench(Bench),
    /// Print the completions for a shell
    Completions {
        /// Which one
        shell: clap_complete::Shell,
    },
}

#[derive(Args)]
pub(crate) struct Migrate {
    /// Change nothing: say what is missing, with exit code 4
    #[arg(long)]
    pub(crate) check: bool,
    /// Change nothing: print the files of SQL for this kind of database
    #[arg(long, conflicts_with = "check")]
    pub(crate) print: bool,
    /// With --print: only those that bring tables of this version up to date
    #[arg(long, value_name = "VERSION", requires = "print", default_value_t = 0)]
    pub(crate) from: usize,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum State {
    Waiting,
    Running,
    Dead,
}

impl From<State> for durable::State {
    fn from(state: State) -> durable::State {
        match state {
            State::Waiting => durable::State::Waiting,
            State::Running => durable::State::Running,
            State::Dead => durable::State::Dead,
        }
    }
}

/// Which timers.
#[derive(Args)]
pub(crate) struct Which {
    /// Only those of this kind
    #[arg(long)]
    pub(crate) kind: Option<String>,
    /// Only those in this state
    #[arg(long)]
    pub(crate) state: Option<State>,
    /// Only those whose key begins with this
    #[arg(long)]
    pub(crate) prefix: Option<String>,
    /// Only those that wake until then: a time, or a duration from now
    #[arg(long, value_name = "TIME", value_parser = times::limit)]
    pub(crate) until: Option<Limit>,
}

#[derive(Args)]
pub(crate) struct Pages {
    /// No more than so many
    #[arg(long, default_value_t = 50)]
    pub(crate) limit: u32,
    /// All, page by page
    #[arg(long, conflicts_with = "limit")]
    pub(crate) all: bool,
}

#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) pages: Pages,
}

/// One timer.
#[derive(Args)]
pub(crate) struct Name {
    /// What names its handler
    pub(crate) kind: String,
    /// What names it in its kind
    pub(crate) key: String,
}

#[derive(Args)]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) name: Name,
    /// Print the payload alone, byte by byte. To a terminal, without what a terminal would obey
    #[arg(long, conflicts_with = "json")]
    pub(crate) payload: bool,
}

#[derive(Args)]
pub(crate) struct When {
    /// So long from now: 90s, 30m, 2h, 3d
    #[arg(long, value_name = "TIME", value_parser = times::delay, conflicts_with = "at")]
    after: Option<Duration>,
    /// At a time, with its offset: 2030-01-31T09:00:00Z. One that has passed is due now; one before 1970 is refused
    #[arg(long, value_name = "TIME", value_parser = times::due)]
    at: Option<SystemTime>,
}

impl From<When> for durable::When {
    fn from(when: When) -> durable::When {
        match when {
            When { at: Some(time), .. } => durable::When::At(time),
            When { after, .. } => durable::When::After(after.unwrap_or_default()),
        }
    }
}

#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct Payload {
    /// A text
    #[arg(long, value_name = "TEXT")]
    pub(crate) payload: Option<String>,
    /// The bytes of a file; - is stdin
    #[arg(long, value_name = "PATH")]
    pub(crate) payload_file: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Missed {
    Skip,
    Once,
    All,
}

#[derive(Args)]
pub(crate) struct Schedule {
    #[command(flatten)]
    pub(crate) name: Name,
    #[command(flatten)]
    pub(crate) when: When,
    #[command(flatten)]
    pub(crate) payload: Payload,
    /// Repeat it so long after it was due
    #[arg(long, value_name = "PERIOD", value_parser = times::delay, conflicts_with = "rule")]
    pub(crate) every: Option<Duration>,
    /// Repeat it by a cron expression, such as '0 9 * * MON-FRI'
    #[arg(long, value_name = "EXPRESSION", conflicts_with_all = ["every", "rule"])]
    pub(crate) cron: Option<String>,
    /// With --cron: in this time zone of the IANA database, such as Europe/Berlin. By default UTC
    #[arg(long, requires = "cron")]
    pub(crate) zone: Option<String>,
    /// With --cron: what becomes of runs that were missed. By default one makes up for all
    #[arg(long, value_name = "POLICY", requires = "cron")]
    pub(crate) missed: Option<Missed>,
    /// Repeat it by a rule of another kind, which its worker knows
    #[arg(long)]
    pub(crate) rule: Option<String>,
    /// After so many failed attempts it is dead
    #[arg(long, value_name = "COUNT")]
    pub(crate) max_attempts: Option<u32>,
    /// A run that takes longer has failed
    #[arg(long, value_name = "DURATION", value_parser = times::delay)]
    pub(crate) time_limit: Option<Duration>,
    /// The trace that its runs belong to, such as a W3C traceparent
    #[arg(long)]
    pub(crate) trace: Option<String>,
    /// Leave a timer that is there already as it is, with exit code 1
    #[arg(long)]
    pub(crate) keep: bool,
}

#[derive(Args)]
pub(crate) struct Reset {
    #[command(flatten)]
    pub(crate) name: Name,
    #[command(flatten)]
    pub(crate) when: When,
}

/// One timer, or all that options name.
#[derive(Args)]
pub(crate) struct OneOrAll {
    /// The kind of the timer
    #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "KIND")]
    pub(crate) of: Option<String>,
    /// Its key
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub(crate) key: Option<String>,
    /// All that the options name, after a question
    #[arg(long, requires = "kind")]
    pub(crate) all: bool,
    /// With --all: those of this kind
    #[arg(long, requires = "all")]
    pub(crate) kind: Option<String>,
    /// With --all: do not ask
    #[arg(long, requires = "all")]
    pub(crate) yes: bool,
}

#[derive(Args)]
pub(crate) struct Cancel {
    #[command(flatten)]
    pub(crate) which: OneOrAll,
    /// With --all: only those in this state
    #[arg(long, requires = "all")]
    pub(crate) state: Option<State>,
    /// With --all: only those whose key begins with this
    #[arg(long, requires = "all")]
    pub(crate) prefix: Option<String>,
}

/// With --all, they are the dead ones of the kind.
#[derive(Args)]
pub(crate) struct Requeue {
    #[command(flatten)]
    pub(crate) which: OneOrAll,
    #[command(flatten)]
    pub(crate) when: When,
}

#[derive(Args)]
pub(crate) struct SetPayload {
    #[command(flatten)]
    pub(crate) name: Name,
    #[command(flatten)]
    pub(crate) payload: Payload,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Outcome {
    Done,
    Failed,
    Dead,
    Snoozed,
}

#[derive(Args)]
pub(crate) struct History {
    /// Only those of this kind
    pub(crate) kind: Option<String>,
    /// Only those of this key
    pub(crate) key: Option<String>,
    /// Only those that ended so
    #[arg(long)]
    pub(crate) outcome: Option<Outcome>,
    /// Only those that began since then: a time, or a duration before now
    #[arg(long, value_name = "TIME", value_parser = times::limit)]
    pub(crate) since: Option<Limit>,
    #[command(flatten)]
    pub(crate) pages: Pages,
}

#[derive(Args)]
pub(crate) struct Top {
    /// How often to look. A large table is counted less often, so that it costs the database a twentieth of its time at most
    #[arg(long, value_name = "PERIOD", value_parser = times::delay, default_value = "2s")]
    pub(crate) every: Duration,
}

#[derive(Args)]
pub(crate) struct Bench {
    /// How many timers
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) timers: u32,
    /// Within which time they are due, evenly. 0s: all at once, which measures the pace
    #[arg(long, value_name = "DURATION", value_parser = times::delay, default_value = "1s")]
    pub(crate) over: Duration,
    /// How many bytes each payload has, at most 100000: a thousand of them are in memory
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(crate) payload: u32,
    /// How many handlers run at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: u16,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}
