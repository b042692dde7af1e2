//! The commands of a connection: those that are about itself, transactions, and calls of scripts.
//!
//! All others are in the [`table`].

use crate::argument::{Args, integer, is, upper};
use crate::channels;
use crate::connection::{Connection, Queued};
use crate::data::Data;
use crate::reply::{Answer, Refusal, Reply};
use crate::scripts::{ScriptCall, Scripts};
use crate::table::{self, miscounted};

/// A connection whose command is carried out.
pub(crate) struct Dialogue<'a> {
    pub(crate) data: &'a mut Data,
    pub(crate) scripts: &'a mut Scripts,
    pub(crate) id: u64,
}

impl Dialogue<'_> {
    /// Carries out a command, and sends what it answers.
    pub(crate) fn carry_out(&mut self, words: Args<'_>) {
        self.data.read_clock();
        let name = upper(words.first().map_or(&[][..], Vec::as_slice));
        self.data.show(self.id, words, false);
        for reply in self.replies(&name, words) {
            self.data.send(self.id, reply);
        }
        self.data.show(self.id, words, true);
    }

    fn replies(&mut self, name: &str, words: Args<'_>) -> Vec<Reply> {
        let Some(connection) = self.data.connections.get_mut(&self.id) else {
            return Vec::new();
        };
        let args = words.get(1..).unwrap_or_default();
        match (name, &mut connection.queued) {
            ("SUBSCRIBE" | "SSUBSCRIBE", _) if args.is_empty() => {
                vec![Reply::Refusal(miscounted(name))]
            }
            ("SUBSCRIBE" | "SSUBSCRIBE" | "UNSUBSCRIBE" | "SUNSUBSCRIBE", _) => {
                channels::subscribe(connection, name, args)
            }
            ("MULTI" | "EXEC" | "DISCARD" | "WATCH", _) | (_, None) => {
                vec![self.answer(name, words).into()]
            }
            (_, Some(queued)) => {
                let checked = match name {
                    "EVAL" | "EVALSHA" | "PING" | "UNWATCH" => Ok(()),
                    _ => table::check(words),
                };
                vec![match checked {
                    Ok(()) => {
                        queued
                            .iter_mut()
                            .for_each(|queued| queued.push(words.to_vec()));
                        Reply::Status("QUEUED".to_owned())
                    }
                    Err(refusal) => {
                        *queued = Err(());
                        Reply::Refusal(refusal)
                    }
                }]
            }
        }
    }

    fn answer(&mut self, name: &str, words: Args<'_>) -> Answer {
        let args = words.get(1..).unwrap_or_default();
        match name {
            "HELLO" => self.hello(args),
            "AUTH" => logged_in(args).map(|()| Reply::ok()),
            "SELECT" => self.select(args),
            "CLIENT" => self.client(args),
            "PING" if self.here()?.listens() && !self.here()?.is_resp3 => {
                let text = args.first().cloned().unwrap_or_default();
                Ok(Reply::bulks([b"pong".to_vec(), text]))
            }
            "PING" => Ok(table::ping(args)),
            "EVAL" | "EVALSHA" => {
                self.data.refused()?;
                self.eval(name, args)
            }
            "SCRIPT" => self.script(args),
            "WATCH" => self.watch(args),
            "UNWATCH" => {
                self.here()?.watched.clear();
                Ok(Reply::ok())
            }
            "MULTI" => match self.here()?.queued {
                Some(_) => Err(Refusal::new("ERR MULTI calls can not be nested")),
                None => {
                    self.here()?.queued = Some(Ok(Vec::new()));
                    Ok(Reply::ok())
                }
            },
            "DISCARD" => {
                self.finished("DISCARD")?.ok();
                Ok(Reply::ok())
            }
            "EXEC" => self.exec(),
            _ => {
                self.data.refused()?;
                let database = self.here()?.database;
                table::run(self.data, database, words)
            }
        }
    }

    /// Returns this connection.
    fn here(&mut self) -> Result<&mut Connection, Refusal> {
        let here = self.data.connections.get_mut(&self.id);
        here.ok_or_else(|| Refusal::new("ERR the connection has ended"))
    }

    /// `HELLO [version [AUTH user password] [SETNAME name]]`
    fn hello(&mut self, args: Args<'_>) -> Answer {
        let mut rest = args.get(1..).unwrap_or_default();
        while let Some(word) = rest.first() {
            rest = match rest {
                [_, user, password, behind @ ..] if is(word, "AUTH") => {
                    logged_in(&[user.clone(), password.clone()])?;
                    behind
                }
                [_, name, behind @ ..] if is(word, "SETNAME") => {
                    self.here()?.name.clone_from(name);
                    behind
                }
                _ => return Err(Refusal::syntax()),
            };
        }
        let id = self.id;
        let here = self.here()?;
        match args.first().map(|version| integer(version)) {
            None => {}
            Some(Ok(3)) => here.is_resp3 = true,
            Some(Ok(2)) => here.is_resp3 = false,
            Some(_) => return Err(Refusal::new("NOPROTO unsupported protocol version")),
        }
        let version = if here.is_resp3 { "3" } else { "2" };
        let told = [
            ("server", "redis"),
            ("version", "7.0.0"),
            ("proto", version),
            ("id", &id.to_string()),
            ("mode", "standalone"),
            ("role", "master"),
        ];
        Ok(Reply::Map(
            told.map(|(name, value)| (name.into(), value.into())).into(),
        ))
    }

    /// `SELECT number`
    fn select(&mut self, args: Args<'_>) -> Answer {
        let [number] = args else {
            return Err(miscounted("select"));
        };
        let number = u32::try_from(integer(number)?).ok();
        let number = number.filter(|number| *number < 16);
        self.here()?.database =
            number.ok_or_else(|| Refusal::new("ERR DB index is out of range"))?;
        Ok(Reply::ok())
    }

    /// `CLIENT SETNAME|SETINFO|INFO|ID|GETNAME|KILL ..`
    fn client(&mut self, args: Args<'_>) -> Answer {
        let id = self.id;
        match args {
            [word, name] if is(word, "SETNAME") => {
                self.here()?.name.clone_from(name);
                Ok(Reply::ok())
            }
            [word, _, _] if is(word, "SETINFO") => Ok(Reply::ok()),
            [word] if is(word, "INFO") => {
                let here = self.here()?;
                let name = String::from_utf8_lossy(&here.name);
                let (address, database) = (address(id), here.database);
                let text = format!("id={id} addr={address} name={name} db={database}\n");
                Ok(Reply::bulk(text))
            }
            [word] if is(word, "ID") => Ok(Reply::Integer(id as i64)),
            [word] if is(word, "GETNAME") => Ok(Reply::bulk(self.here()?.name.clone())),
            [word, filters @ ..] if is(word, "KILL") => self.kill(filters),
            _ => Err(Refusal::new("ERR unknown subcommand of CLIENT")),
        }
    }

    /// Ends the connections that match all the filters, which are `ID id` and `ADDR address`.
    fn kill(&mut self, filters: Args<'_>) -> Answer {
        if filters.is_empty() || !filters.len().is_multiple_of(2) {
            return Err(Refusal::syntax());
        }
        let is_meant = |id: &u64| {
            filters
                .chunks_exact(2)
                .all(|filter| match &*upper(&filter[0]) {
                    "ID" => filter[1] == id.to_string().as_bytes(),
                    "ADDR" => filter[1] == address(*id).as_bytes(),
                    _ => false,
                })
        };
        let meant: Vec<_> = self
            .data
            .connections
            .keys()
            .filter(|id| is_meant(id))
            .copied()
            .collect();
        for id in &meant {
            let ended = self.data.connections.remove(id);
            self.data.woken.extend(ended.and_then(|ended| ended.reader));
        }
        Ok(Reply::count(meant.len()))
    }

    /// `EVAL source count key.. argument..`, and `EVALSHA` with the SHA-1 in place of the source.
    fn eval(&mut self, name: &str, args: Args<'_>) -> Answer {
        let [script, count, rest @ ..] = args else {
            return Err(miscounted(name));
        };
        let count = usize::try_from(integer(count)?)
            .map_err(|_| Refusal::new("ERR Number of keys can't be negative"))?;
        if count > rest.len() {
            let text = "ERR Number of keys can't be greater than number of args";
            return Err(Refusal::new(text));
        }
        let (keys, args) = rest.split_at(count);
        let call = ScriptCall {
            sha: match name {
                "EVAL" => self.scripts.load(script)?,
                _ => String::from_utf8_lossy(script).to_lowercase(),
            },
            database: self.here()?.database,
            keys,
            args,
        };
        self.scripts.run(self.data, &call)
    }

    /// `SCRIPT LOAD source`, `SCRIPT EXISTS sha..` and `SCRIPT FLUSH`
    fn script(&mut self, args: Args<'_>) -> Answer {
        match args {
            [word, source] if is(word, "LOAD") => self.scripts.load(source).map(Reply::bulk),
            [word, hashes @ ..] if is(word, "EXISTS") => {
                let known = hashes.iter().map(|sha| self.scripts.knows(sha));
                let known = known.map(|known| Reply::Integer(known.into()));
                Ok(Reply::List(known.collect()))
            }
            [word, ..] if is(word, "FLUSH") => {
                *self.scripts = Scripts::default();
                Ok(Reply::ok())
            }
            _ => Err(Refusal::new("ERR unknown subcommand of SCRIPT")),
        }
    }

    /// `WATCH key..`
    fn watch(&mut self, args: Args<'_>) -> Answer {
        if args.is_empty() {
            return Err(miscounted("watch"));
        }
        if self.here()?.queued.is_some() {
            return Err(Refusal::new("ERR WATCH inside MULTI is not allowed"));
        }
        let database = self.here()?.database;
        for key in args {
            let entry = self.data.keys(database).entry(key).cloned();
            self.here()?.watched.push((database, key.clone(), entry));
        }
        Ok(Reply::ok())
    }

    /// `EXEC`: carries out what was queued, if no watched key is another one by now.
    fn exec(&mut self) -> Answer {
        let watched = self.here()?.watched.clone();
        let queued = self.finished("EXEC")?.map_err(|()| {
            Refusal::new("EXECABORT Transaction discarded because of previous errors.")
        })?;
        for (database, key, entry) in &watched {
            if self.data.keys(*database).entry(key).as_deref() != entry.as_ref() {
                return Ok(Reply::Nil);
            }
        }
        let replies = queued.iter().map(|words| {
            let name = upper(words.first().map_or(&[][..], Vec::as_slice));
            self.answer(&name, words).into()
        });
        Ok(Reply::List(replies.collect()))
    }

    /// Ends the transaction, and returns what was queued.
    fn finished(&mut self, name: &str) -> Result<Queued, Refusal> {
        let here = self.here()?;
        let queued = here.queued.take();
        let queued = queued.ok_or_else(|| Refusal::new(format!("ERR {name} without MULTI")))?;
        here.watched.clear();
        Ok(queued)
    }
}

/// Checks a login. There is only the default user, who needs no password and gets in with any.
fn logged_in(args: Args<'_>) -> Result<(), Refusal> {
    match args {
        [_] => Ok(()),
        [user, _] if user == b"default" => Ok(()),
        [_, _] => Err(Refusal::new(
            "WRONGPASS invalid username-password pair or user is disabled.",
        )),
        _ => Err(Refusal::new(
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
             configuration is correct?",
        )),
    }
}

/// Returns the address of a connection, which no other connection to this server has.
fn address(id: u64) -> String {
    format!("memory:{id}")
}
