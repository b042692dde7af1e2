//! The layers of the modules under `src/`, and which module may name which.

/// The layers from the bottom up. A module may name every module of a lower layer, and those of its own layer that are
/// listed next to it here; `*` stands for all. `lock::*` are the modules under `lock` that have no entry of their own.
const LAYERS: [&[(&str, &str)]; 6] = [
    &[
        ("clock", ""),
        ("error", "loss"),
        ("loss", ""),
        ("name", "error"),
        ("label", "error owner"),
        ("owner", "error scope"),
        ("scope", "owner"),
        ("backoff", "error"),
        ("pace", "clock"),
        ("options", "clock error label owner"),
        ("permit_id", "error"),
        ("stats", "metrics stats::number"),
        ("stats::number", "metrics"),
        ("metrics", ""),
        ("no_metrics", ""),
        ("memory", "clock config"),
        ("config::connect", "config"),
        ("config::credentials", "config"),
        (
            "config::fred",
            "config config::credentials config::tls error",
        ),
        ("config::redis", "config config::tls error"),
        ("config::secret", ""),
        ("config::server", "config error"),
        ("config::tls", "config error"),
        (
            "config",
            "backoff config::connect config::credentials config::deployment config::fred config::login config::redis config::secret config::server config::tls error options owner",
        ),
        (
            "config::*",
            "config config::secret config::server config::tls config::url error",
        ),
    ],
    &[
        ("protocol", ""),
        ("protocol::reply", ""),
        ("protocol::sent_over", ""),
        ("protocol::compare", "protocol::reply"),
        ("protocol::script", "protocol::compare protocol::sent_over"),
        ("protocol::answer", "protocol::reply"),
        ("protocol::acquired", "protocol::answer protocol::reply"),
        ("protocol::hold_key", ""),
        ("protocol::counted", "protocol::answer protocol::reply"),
        ("protocol::counter", "protocol::script"),
        (
            "protocol::latch",
            "protocol::counter protocol::lock protocol::script",
        ),
        (
            "protocol::semaphore",
            "protocol::counter protocol::lock protocol::script",
        ),
        ("protocol::key_kind", "protocol::reply protocol::script"),
        ("protocol::leader", "protocol::script"),
        ("protocol::lock", "protocol::hold_key protocol::script"),
        (
            "protocol::fenced",
            "protocol::hold_key protocol::lock protocol::script",
        ),
        (
            "protocol::fair",
            "protocol::answer protocol::hold_key protocol::lock protocol::reply protocol::script",
        ),
        (
            "protocol::batch",
            "protocol::answer protocol::fenced protocol::hold_key protocol::lock protocol::reply protocol::script",
        ),
        (
            "protocol::steps",
            "protocol::compare protocol::reply protocol::script",
        ),
        ("protocol::plain", "protocol::hold_key protocol::script"),
        (
            "protocol::read_write",
            "protocol::acquired protocol::hold_key protocol::lock protocol::script",
        ),
        ("protocol::quorum", ""),
        (
            "protocol::quorum_model",
            "protocol::quorum protocol::quorum_model::server protocol::renewal",
        ),
        (
            "protocol::quorum_model::server",
            "protocol::quorum protocol::renewal",
        ),
        (
            "protocol::quorum_model::scenarios",
            "protocol::quorum_model protocol::quorum_model::server",
        ),
        (
            "protocol::turns_model",
            "protocol::model protocol::turns_model::fault protocol::turns_model::process protocol::turns_model::server",
        ),
        (
            "protocol::turns_model::fault",
            "protocol::turns_model protocol::turns_model::process protocol::turns_model::server",
        ),
        (
            "protocol::turns_model::process",
            "protocol::turns_model protocol::turns_model::server",
        ),
        (
            "protocol::turns_model::server",
            "protocol::turns_model protocol::turns_model::process",
        ),
        ("protocol::model", ""),
        (
            "protocol::turns_model::scenarios",
            "protocol::model protocol::turns_model",
        ),
        (
            "protocol::red",
            "protocol::acquired protocol::reply protocol::script",
        ),
        ("protocol::calls", "*"),
        ("protocol::policy", "protocol::hold_key"),
        ("protocol::wait", "protocol::answer"),
        (
            "protocol::waiter",
            "protocol::answer protocol::policy protocol::wait",
        ),
        (
            "protocol::waiter::tests",
            "protocol::answer protocol::policy protocol::wait protocol::waiter",
        ),
        (
            "protocol::waiter_model",
            "protocol::answer protocol::model protocol::policy protocol::wait protocol::waiter",
        ),
        ("protocol::renewal", ""),
    ],
    &[
        ("session::backend::slots", ""),
        ("session::backend::told", "session::backend::resp"),
        ("session::backend::silence", ""),
        ("session::backend::meter", ""),
        ("session::backend::statement", ""),
        ("session::backend::refusal", ""),
        ("session::backend::resp", ""),
        ("session::backend::socket", ""),
        ("session::backend::network", "session::backend::socket"),
        ("session::backend::secured", "session::backend::socket"),
        (
            "session::backend::tls",
            "session::backend::secured session::backend::socket",
        ),
        (
            "session::backend::contact",
            "session::backend::identity session::backend::tls",
        ),
        (
            "session::backend::identity",
            "session::backend::contact session::backend::dial session::backend::resp",
        ),
        (
            "session::backend::link",
            "session::backend::resp session::backend::socket",
        ),
        (
            "session::backend::dial",
            "session::backend::contact session::backend::identity session::backend::link session::backend::network session::backend::refusal session::backend::resp session::backend::sentinel session::backend::socket session::backend::tls",
        ),
        (
            "session::backend::sentinel",
            "session::backend::dial session::backend::link session::backend::resp session::backend::statement",
        ),
        (
            "session::backend::post",
            "session::backend session::backend::connection session::backend::desk session::backend::node session::backend::send_error",
        ),
        (
            "session::backend::desk",
            "session::backend::resp session::backend::socket",
        ),
        (
            "session::backend::connection",
            "session::backend::desk session::backend::dial session::backend::connection_task session::backend::link session::backend::resp session::backend::meter",
        ),
        (
            "session::backend::connection_task",
            "session::backend::connection session::backend::desk session::backend::dial session::backend::identity session::backend::link session::backend::meter session::backend::resp session::backend::socket",
        ),
        (
            "session::backend::replicas",
            "session::backend session::backend::connection session::backend::maker session::backend::node session::backend::refusal session::backend::resp session::backend::slots",
        ),
        (
            "session::backend::transaction",
            "session::backend::connection session::backend::dial session::backend::connection_task session::backend::link session::backend::node session::backend::resp session::backend::send_error",
        ),
        (
            "session::backend::maker",
            "session::backend session::backend::connection session::backend::dial session::backend::listener session::backend::sentinel session::backend::tls session::backend::transaction session::backend::meter",
        ),
        (
            "session::backend::send_error",
            "session::backend::connection session::backend::node session::backend::refusal session::backend::resp session::backend::slots",
        ),
        (
            "session::backend::listener",
            "session::backend session::backend::dial session::backend::identity session::backend::link session::backend::resp session::backend::slots session::backend::told session::backend::meter",
        ),
        (
            "session::backend::node",
            "session::backend session::backend::connection session::backend::dial session::backend::listener session::backend::maker session::backend::refusal session::backend::resp session::backend::send_error session::backend::replicas session::backend::silence session::backend::slots session::backend::transaction",
        ),
        (
            "session::backend::inquiry",
            "session::backend session::backend::connection session::backend::dial session::backend::node session::backend::refusal session::backend::resp session::backend::run session::backend::slots",
        ),
        ("session::backend::channels", "session::backend::node"),
        (
            "session::backend::run",
            "session::backend session::backend::connection session::backend::node session::backend::post session::backend::send_error session::backend::slots",
        ),
        (
            "session::backend::cluster",
            "session::backend session::backend::channels session::backend::maker session::backend::node session::backend::slots",
        ),
        (
            "session::backend",
            "session::backend::channels session::backend::cluster session::backend::listener session::backend::maker session::backend::node session::backend::post session::backend::replicas session::backend::run session::backend::slots session::backend::told session::backend::meter",
        ),
        ("session::tally", "session::backend session::hold"),
        ("session::sync", ""),
        ("session::record", "session::sync"),
        ("session::hold_state", ""),
        (
            "session::hold",
            "session::hold_state session::record session::successor",
        ),
        ("session::successor", "session::hold"),
        (
            "session::hub",
            "session::backend session::subscriber session::subscription",
        ),
        ("session::subscription", "session::hub"),
        ("session::subscriber", "session::backend session::hub"),
        ("session::local_queue", ""),
        ("session::turns", ""),
        ("session::outgoing", "session::local_queue"),
        ("session::left", "session::hold session::local_queue"),
        ("session::owners", "session::hold session::local_queue"),
        (
            "session::local_lock",
            "session::hold session::left session::local_queue session::outgoing session::owners session::record session::sync session::turns",
        ),
        (
            "session::local_lock::tests",
            "session::hold session::left session::local_queue session::place session::local_lock session::record session::sync",
        ),
        (
            "session::asking",
            "session::local_lock session::local_queue session::outgoing session::owners",
        ),
        (
            "session::place",
            "session::local_queue session::local_lock session::sync",
        ),
        (
            "session::handoff",
            "session::hold session::left session::local_queue session::local_lock session::record session::sync",
        ),
        (
            "session::task",
            "session::hold session::place session::sync",
        ),
        ("session::grants", "session::hold"),
        ("session::undo", ""),
        ("session::ledger", ""),
        ("session::reaper", "session::backend session::ledger"),
        (
            "session::permit_record",
            "session::backend session::place session::reaper session::releaser session::sync session::tally session::undo",
        ),
        (
            "session::unlock",
            "session session::hold session::record session::share session::sync session::undo",
        ),
        (
            "session::share",
            "session::asking session::backend session::hold session::ledger session::left session::local_lock session::place session::reaper session::release_request session::releaser session::undo",
        ),
        (
            "session::release_request",
            "session::backend session::hold session::record session::releaser session::share session::task",
        ),
        (
            "session::releaser",
            "session::backend session::grants session::hold session::hub session::local_lock session::reaper session::share session::sync session::tally session::turns session::undo",
        ),
        (
            "session::keeper",
            "session::grants session::hold session::releaser",
        ),
        (
            "session::unpolled",
            "session::backend session::grants session::place session::releaser",
        ),
        ("session::outage_log", ""),
        ("session::watchdog::attention", "session::watchdog"),
        (
            "session::watchdog::confirmation",
            "session::hold session::record session::watchdog",
        ),
        (
            "session::watchdog::report",
            "session::backend session::hold session::outage_log session::watchdog",
        ),
        (
            "session::watchdog",
            "session::backend session::hold session::outage_log session::record session::releaser session::share session::tally session::undo",
        ),
        ("session::misuse", "session"),
        ("session", "*"),
    ],
    &[
        ("hold", ""),
        ("hold::request", ""),
        ("hold::lease", "hold::request"),
        ("hold::guard", "hold::lease hold::request"),
        ("hold::long_wait", "hold::request"),
        ("hold::place", "hold::guard hold::request"),
        ("hold::attempt", "hold::guard hold::request"),
        (
            "hold::attempt::grant",
            "hold::attempt hold::guard hold::request",
        ),
        ("hold::attempt::transfer", "hold::attempt hold::guard"),
        (
            "hold::level",
            "hold::attempt hold::guard hold::lease hold::request",
        ),
        ("hold::readers", "hold::guard hold::place hold::request"),
        (
            "hold::front",
            "hold::attempt hold::place hold::request wait",
        ),
        (
            "hold::server_queue",
            "hold::attempt hold::place hold::request",
        ),
        (
            "hold::acquire",
            "hold::attempt hold::guard hold::place hold::replication hold::request",
        ),
        ("hold::replication", "hold::guard"),
        ("hold::batch", "hold::attempt hold::guard hold::request"),
        (
            "hold::group",
            "hold::batch hold::guard hold::replication hold::request",
        ),
        ("hold::quorum_hold", "hold::guard hold::lease"),
        (
            "hold::quorum_acquire",
            "hold::attempt hold::request hold::quorum_hold",
        ),
        (
            "hold::rounds",
            "hold::quorum_acquire hold::request hold::quorum_hold wait",
        ),
        ("wait", ""),
        ("counter", "wait"),
    ],
    &[
        ("lock", ""),
        ("lock::handle", "lock::holder"),
        ("lock::holder", ""),
        ("lock::member", "lock::handle"),
        (
            "lock::methods",
            "lock::handle lock::member lock::queries lock::runs",
        ),
        ("lock::queries", "lock::handle lock::holder lock::methods"),
        ("lock::multi_guard", "lock::fenced"),
        (
            "lock::multi",
            "lock::handle lock::member lock::multi_guard lock::runs",
        ),
        ("lock::red_guard", ""),
        (
            "lock::red",
            "lock::handle lock::member lock::red_guard lock::runs",
        ),
        ("lock::distributed", ""),
        ("lock::dynamic", "lock::distributed"),
        ("lock::runs", "lock::distributed"),
        (
            "lock::kinds",
            "lock::distributed lock::fair lock::fenced lock::holder lock::multi lock::multi_guard lock::named lock::plain lock::read_write lock::red lock::red_guard lock::reentrant lock::spin",
        ),
        ("lock::named", "lock::distributed lock::holder"),
        (
            "lock::*",
            "lock::handle lock::holder lock::member lock::methods",
        ),
        ("latch", ""),
        ("outage", ""),
        ("leader", ""),
        ("leader::term", "lock::fenced lock::holder"),
        ("leader::watch", "leader::term lock::handle outage"),
        (
            "leader::election",
            "leader::term leader::watch lock::fenced lock::handle outage",
        ),
        ("job", "lock::fenced lock::handle outage"),
        ("semaphore", ""),
        ("semaphore::pool", ""),
        ("semaphore::methods", "semaphore::pool"),
        ("semaphore::*", "semaphore::pool semaphore::methods"),
    ],
    &[
        (
            "admin",
            "admin::found admin::inspection admin::listing admin::rights admin::server admin::watch",
        ),
        ("admin::found", ""),
        ("admin::inspection", "admin::found"),
        ("admin::listing", "admin admin::inspection"),
        ("admin::reading", "admin admin::found admin::inspection"),
        ("admin::rights", "admin"),
        ("admin::server", ""),
        ("admin::watch", ""),
        ("client", "admin builder"),
        ("client::handles", "client"),
        ("builder", "client"),
        ("builder::clients", "builder"),
        ("builder::servers", "builder"),
        ("builder::reports", "builder"),
        ("attribute", ""),
        ("tower", ""),
        ("lib", "*"),
    ],
];

/// Returns whether the table lets one module name another.
pub(crate) fn may_name(from: &str, to: &str) -> bool {
    let (from_layer, beside) = place(from);
    let (to_layer, _) = place(to);
    to_layer < from_layer
        || to_layer == from_layer
            && (from == to || beside == "*" || beside.split(' ').any(|module| module == to))
}

/// Returns the layer of a module, and what it may name there.
fn place(module: &str) -> (usize, &'static str) {
    let parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
    let wanted = [module.to_owned(), format!("{parent}::*")];
    let found = wanted.iter().find_map(|wanted| {
        let layers = LAYERS.iter().enumerate();
        let mut entries = layers.flat_map(|(n, layer)| layer.iter().map(move |entry| (n, entry)));
        entries.find_map(|(n, (name, beside))| (name == wanted).then_some((n, *beside)))
    });
    found.unwrap_or_else(|| panic!("the module {module} has no place in LAYERS"))
}
