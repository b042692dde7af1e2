//! Calls of scripts with random keys and arguments, which the headers of the scripts describe.

use fastrand::Rng;

/// What a header says of a key or an argument: which it is, and its meaning.
struct Slot {
    is_key: bool,
    /// What stands between the brackets.
    index: String,
    meaning: String,
}

/// A script with the keys and arguments that its header lists.
pub struct Script {
    pub name: &'static str,
    pub source: &'static str,
    slots: Vec<Slot>,
}

/// Who makes a call: one of a few owners of a few clients, so that calls meet on the same fields.
struct Actor {
    client: String,
    owner: String,
    /// The number of permits, and their ids.
    permits: usize,
}

impl Script {
    pub fn all() -> Vec<Self> {
        let named = redlatch_testkit::script_names().map(|name| {
            let source = redlatch_testkit::script(name);
            Self {
                slots: slots(source),
                name,
                source,
            }
        });
        named.collect()
    }

    /// Returns the words behind the script: the number of keys, the keys, and the arguments.
    pub fn words(&self, rng: &mut Rng) -> Vec<String> {
        let actor = Actor::any(rng);
        let entries = 1 + pick(rng, &[0, 0, 1]);
        let (mut keys, mut args) = (Vec::new(), Vec::new());
        let of_each = |slot: &&Slot| slot.index.contains(" of ");
        let for_any = |slot: &&Slot| slot.index == "..";
        let guards = |slot: &&Slot| slot.index.starts_with('+');
        let once = |slot: &&Slot| !of_each(slot) && !for_any(slot) && !guards(slot);
        for slot in self.slots.iter().filter(once) {
            let list = if slot.is_key { &mut keys } else { &mut args };
            list.push(self.word(slot, &actor, 0, rng));
        }
        let mut with_tokens = 0;
        for entry in 0..entries {
            for slot in self.slots.iter().filter(of_each) {
                let word = self.word(slot, &actor, entry, rng);
                with_tokens += usize::from(slot.meaning.contains("has no tokens") && word != "-1");
                if slot.is_key { &mut keys } else { &mut args }.push(word);
            }
        }
        for slot in self.slots.iter().filter(for_any) {
            let count = if slot.meaning.starts_with("behind all locks") {
                with_tokens
            } else {
                entries
            };
            keys.extend((0..count).map(|entry| self.word(slot, &actor, entry, rng)));
        }
        for slot in self.slots.iter().filter(guards) {
            let list = if slot.is_key { &mut keys } else { &mut args };
            list.push(self.word(slot, &actor, 0, rng));
        }
        let mut words = vec![keys.len().to_string()];
        words.extend(keys);
        words.extend(args);
        words
    }

    fn word(&self, slot: &Slot, actor: &Actor, entry: usize, rng: &mut Rng) -> String {
        match slot.is_key {
            // Now and then another key: one of another type, or none. But not for a server epoch, which no two servers
            // share.
            true if rng.u8(..60) == 0 && !slot.meaning.contains("server epoch") => any_key(rng),
            true => self.key(&slot.meaning, entry, rng),
            false => self.argument(&slot.meaning, actor, entry, rng),
        }
    }

    /// Returns the kind of lock, semaphore or latch that the script is about.
    pub fn family(&self) -> &str {
        match self.name.split('_').next().unwrap_or_default() {
            "read" | "write" | "rw" => "rw",
            "permit" | "semaphore" | "counter" => "semaphore",
            family @ ("fair" | "plain" | "latch") => family,
            _ => "lock",
        }
    }

    /// Returns a name, which the scripts of a family share.
    fn named(&self, entry: usize) -> String {
        format!("{}{}", self.family(), entry + 1)
    }

    fn key(&self, meaning: &str, entry: usize, rng: &mut Rng) -> String {
        let name = self.named(entry);
        let has = |words: &str| meaning.contains(words);
        if has("channel") {
            return channel(&name);
        }
        if has("request mark") {
            return pick(rng, &["mark1", "mark2"]).to_owned();
        }
        match () {
            () if has("server epoch") => "epoch".to_owned(),
            () if meaning.starts_with("the queue") => format!("queue:{name}"),
            () if meaning.starts_with("its scores") => format!("scores:{name}"),
            () if meaning.starts_with("its places") => format!("redlatch_lock_places:{name}"),
            () if has("last token of") || has("the last token") || has("its last token") => {
                format!("token:{name}")
            }
            () if has("what the level keys begin with") => format!("levels:{name}"),
            () if has("mark of a reader") => "reader".to_owned(),
            () if has("waiter mark") => "writer".to_owned(),
            () if meaning.starts_with("acquired permits") => "permits".to_owned(),
            () if has("the lock") || has("the semaphore") || has("the latch") => name,
            () => panic!("{}: what key is {meaning:?}?", self.name),
        }
    }

    fn argument(&self, meaning: &str, actor: &Actor, entry: usize, rng: &mut Rng) -> String {
        let has = |words: &str| meaning.contains(words);
        let starts = |words: &str| meaning.starts_with(words);
        if let Some(word) = one_of(meaning, rng) {
            return word;
        }
        let numbers: &[&str] = match () {
            () if starts("share to reach") => &["1", "1", "2", "3"],
            () if starts("share to keep") => &["0", "0", "1", "2"],
            () if starts("lease") && has("; 0") => &["0", "20000", "60000"],
            () if starts("lease") => &["20000", "60000", "600000"],
            () if starts("longest lease") => &["600000", "6000000"],
            () if has("has no tokens") => &["-1", "0", "60000"],
            () if starts("how long") || starts("lifetime") => &["0", "30000", "60000"],
            () if starts("priority") => &["0", "0", "-1", "5"],
            () if starts("what a place is worth") => &["300000"],
            () if starts("how many tokens") => &["1", "3"],
            () if starts("how many subscribers") => &["-1", "0", "1"],
            () if starts("how many levels were taken") => &["0", "0", "1"],
            () if starts("share that was recorded") => &["1", "2", "3"],
            () if starts("1 if the hold was recorded") => &["0", "1"],
            () if starts("count") => &["0", "1", "3"],
            () if starts("permits to add") => &["1", "3", "-1"],
            () if starts("permits to return") => &["1", "2"],
            () if starts("number of this extension") => &["1", "2"],
            () if starts("level to take over") => &["1", "2"],
            () if starts("when this call arrived") => &["-1000000", "-5000000"],
            () if starts("at_least") => &["at_least", "0", "1700000000000"],
            () if starts("within how many") => &["0", "1", "400", "-1", "-400"],
            () if starts("message to publish") && has("empty") => &["0", "0", ""],
            () if starts("message to publish") => &["0"],
            () if starts("publish command") && has("empty") => {
                &["PUBLISH", "PUBLISH", "SPUBLISH", ""]
            }
            () if starts("publish command") => &["PUBLISH", "PUBLISH", "SPUBLISH", "PUBLISHED"],
            () => &[],
        };
        match () {
            () if !numbers.is_empty() => pick(rng, numbers).to_owned(),
            () if starts("owner field:write") => format!("{}:write", actor.owner),
            () if has("on this side")
                || has("of the owner that acquired")
                || has("are reported") =>
            {
                format!("{}{}", actor.owner, pick(rng, &["", "", ":write"]))
            }
            () if starts("acquisition field") => actor.acquisition_field(),
            () if starts("owner field") => actor.owner.clone(),
            () if has("acquisition id, h and") => actor.id(rng),
            () if starts("acquisition id of a hold that nobody") => match rng.bool() {
                true => actor.id(rng),
                false => String::new(),
            },
            () if starts("field to take from") => match rng.bool() {
                true => Actor::any(rng).acquisition_field(),
                false => actor.owner.clone(),
            },
            () if has("held when it was read") && has("empty") => actor.id(rng),
            () if has("held when it was read") => {
                format!("{}:{}", actor.id(rng), pick(rng, &[1, 2]))
            }
            () if has("channel") => channel(&self.named(entry)),
            () if starts("client") || starts("the client") => actor.client.clone(),
            () if starts("permits to acquire") => actor.permits.to_string(),
            () if starts("their ids") => (0..actor.permits)
                .map(|id| format!("{:032x}", id + 7))
                .collect(),
            () if starts("what the level keys begin with") => {
                format!("levels:{}", self.named(entry))
            }
            () if starts("value of") => format!("value-{}", actor.owner),
            () => panic!("{}: what argument is {meaning:?}?", self.name),
        }
    }
}

impl Actor {
    fn any(rng: &mut Rng) -> Self {
        let client = pick(rng, &["c1", "c2"]).to_owned();
        let owner = match pick(rng, &["1", "2", "named"]) {
            "named" => "named".to_owned(),
            task => format!("{client}:{task}"),
        };
        Self {
            client,
            owner,
            permits: pick(rng, &[1, 1, 2]),
        }
    }

    fn acquisition_field(&self) -> String {
        match self.owner.contains(':') {
            true => format!("|{}", self.client),
            false => format!("|{}:{}", self.client, self.owner),
        }
    }

    /// Returns one of two acquisition ids: of this acquisition, or of another one.
    fn id(&self, rng: &mut Rng) -> String {
        let owner = self.owner.bytes().map(u64::from).sum::<u64>();
        format!("h{:016x}", owner * 16 + pick(rng, &[1, 1, 1, 2]))
    }
}

/// Returns a key that some script may use, to be changed past all of them.
pub fn any_key(rng: &mut Rng) -> String {
    let keys = [
        "lock1",
        "lock2",
        "fair1",
        "rw1",
        "plain1",
        "semaphore1",
        "latch1",
        "token:lock1",
        "queue:fair1",
        "scores:fair1",
        "redlatch_lock_places:fair1",
        "mark1",
        "permits",
        "writer",
        "reader",
        "levels:rw1:c1:1:rwlock_timeout:1",
        "redlatch_turns:{lock1}",
        "other",
    ];
    pick(rng, &keys).to_owned()
}

/// Returns the channel of a lock.
pub fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

pub fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}

/// Returns one of the words if the meaning begins with words to choose from, such as `take or join`.
fn one_of(meaning: &str, rng: &mut Rng) -> Option<String> {
    let list = meaning.split([':', ';', ',', '.']).next()?;
    let list = match meaning.split_once(" or ") {
        Some((first, _)) if first.contains(", ") && !first.contains(['.', ':', ';', '(']) => {
            meaning.split([':', ';']).next()?
        }
        _ => list,
    };
    let (firsts, last) = list.split_once(" or ")?;
    let words: Vec<_> = firsts.split(", ").chain([last]).collect();
    let is_word = |word: &&str| word.chars().all(|letter| letter.is_ascii_lowercase());
    words
        .iter()
        .all(is_word)
        .then(|| pick(rng, &words).to_owned())
}

/// Reads the keys and arguments in the header lines of a script.
fn slots(source: &str) -> Vec<Slot> {
    let mut slots: Vec<Slot> = Vec::new();
    for line in source.lines() {
        let Some(text) = line.strip_prefix("-- ") else {
            continue;
        };
        let numbered = text.split_once("] ").and_then(|(which, meaning)| {
            let index = which
                .strip_prefix("KEYS[")
                .or_else(|| which.strip_prefix("ARGV["))?;
            Some(Slot {
                is_key: which.starts_with('K'),
                index: index.to_owned(),
                meaning: meaning.to_owned(),
            })
        });
        match (numbered, text.strip_prefix("  "), slots.last_mut()) {
            (Some(slot), ..) => slots.push(slot),
            (None, Some(more), Some(last)) => last.meaning = format!("{} {more}", last.meaning),
            _ => {}
        }
    }
    slots
}
