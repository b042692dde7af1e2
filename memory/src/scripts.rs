//! Scripts: an embedded Lua runs them as Redis does.
//!
//! Lua 5.1 is the version that Redis embeds. What a command answers is handed to Lua by the rules of Redis, and what a
//! script returns becomes a reply by the same rules: a number loses its fraction, a list ends at the first `nil`.

use std::cell::RefCell;
use std::collections::HashMap;

use mlua::state::{GcIncParams, GcMode};
use mlua::{Function, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value};
use sha1_smol::Sha1;

use crate::argument::Args;
use crate::data::Data;
use crate::reply::{Answer, Refusal, Reply, score_text};
use crate::table;

/// Replaces the globals by what a script may see of them: it can change none, nor ask for one that there is not.
const PROTECT: &str = "
local globals = ...
local function refuse()
  error('Attempt to modify a readonly table', 2)
end
local function protected(table)
  return setmetatable({}, {__index = table, __newindex = refuse, __metatable = false})
end
for name, value in pairs(globals) do
  if type(value) == 'table' then
    globals[name] = protected(value)
  end
end
setmetatable(globals, {__index = function(_, name)
  error(\"Script attempted to access nonexistent global variable '\" .. tostring(name) .. \"'\", 2)
end})
globals._G = protected(globals)
return globals._G
";

/// The scripts that a server knows, and what runs them.
#[derive(Default)]
pub(crate) struct Scripts {
    /// Made when the first script comes.
    engine: Option<Engine>,
    /// By the SHA-1 of their source.
    known: HashMap<String, Function>,
}

/// What runs scripts.
struct Engine {
    lua: Lua,
    /// What scripts see, and cannot change.
    globals: Table,
    /// The functions of the server.
    redis: Table,
}

/// A script with its keys and arguments.
pub(crate) struct ScriptCall<'a> {
    pub(crate) sha: String,
    pub(crate) database: u32,
    pub(crate) keys: Args<'a>,
    pub(crate) args: Args<'a>,
}

impl Scripts {
    /// Compiles a script, unless it is known. Returns its SHA-1.
    pub(crate) fn load(&mut self, source: &[u8]) -> Result<String, Refusal> {
        let sha = Sha1::from(source).digest().to_string();
        if !self.known.contains_key(&sha) {
            let chunk = self.engine()?.lua.load(source).set_name("@user_script");
            let script = chunk.into_function().map_err(|error| {
                Refusal::new(format!(
                    "ERR Error compiling script (new function): {error}"
                ))
            })?;
            self.known.insert(sha.clone(), script);
        }
        Ok(sha)
    }

    pub(crate) fn knows(&self, sha: &[u8]) -> bool {
        std::str::from_utf8(sha).is_ok_and(|sha| self.known.contains_key(&sha.to_lowercase()))
    }

    /// Runs a script that is known.
    pub(crate) fn run(&mut self, data: &mut Data, call: &ScriptCall<'_>) -> Answer {
        let script = self.known.get(&call.sha).cloned();
        let script =
            script.ok_or_else(|| Refusal::new("NOSCRIPT No matching script. Please use EVAL."))?;
        let Engine {
            lua,
            globals,
            redis,
        } = self.engine()?;
        let data = RefCell::new(data);
        let ask = |words: &MultiValue| {
            let words = words.iter().map(word).collect::<Result<Vec<_>, _>>()?;
            table::run_for_script(&mut data.borrow_mut(), call.database, &words)
        };
        let returned = lua.scope(|scope| {
            let raising = scope.create_function(|lua, words: MultiValue| match ask(&words) {
                Ok(reply) => to_lua(lua, reply),
                Err(refusal) => Err(mlua::Error::external(located(lua, refusal, &call.sha))),
            })?;
            let returning = scope.create_function(|lua, words: MultiValue| match ask(&words) {
                Ok(reply) => to_lua(lua, reply),
                Err(refusal) => to_lua(lua, Reply::Refusal(refusal)),
            })?;
            redis.set("call", raising)?;
            redis.set("pcall", returning)?;
            globals.raw_set("KEYS", texts(lua, call.keys)?)?;
            globals.raw_set("ARGV", texts(lua, call.args)?)?;
            from_lua(script.call(())?)
        });
        returned.map_err(|error| refused(&error, &call.sha))
    }

    fn engine(&mut self) -> Result<&Engine, Refusal> {
        if self.engine.is_none() {
            let made = made().map_err(|error| Refusal::new(format!("ERR no Lua: {error}")))?;
            self.engine = Some(made);
        }
        self.engine
            .as_ref()
            .ok_or_else(|| Refusal::new("ERR no Lua"))
    }
}

/// Returns what runs scripts, with the functions that Redis adds.
fn made() -> mlua::Result<Engine> {
    // Nothing that reaches out of the server: no files, no modules.
    let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
    let lua = Lua::new_with(libraries, LuaOptions::default())?;
    // Scripts keep nothing, so that little is in use: garbage is collected at ten times as much, and not at twice.
    lua.gc_set_mode(GcMode::Incremental(GcIncParams::default().pause(1_000)));
    let globals = lua.globals();
    for name in [
        "dofile", "getfenv", "loadfile", "newproxy", "print", "setfenv",
    ] {
        globals.set(name, Value::Nil)?;
    }
    let redis = lua.create_table()?;
    let of_one_field = |name: &'static str| {
        lua.create_function(move |lua, text: LuaString| {
            let table = lua.create_table()?;
            table.set(name, text)?;
            Ok(table)
        })
    };
    redis.set("status_reply", of_one_field("ok")?)?;
    redis.set(
        "error_reply",
        lua.create_function(|lua, text: LuaString| {
            let text = text.to_string_lossy();
            let text = text.strip_prefix('-').unwrap_or(&text).to_owned();
            let text = match text.contains(' ') {
                true => text,
                false => format!("ERR {text}"),
            };
            to_lua(lua, Reply::Refusal(Refusal(text)))
        })?,
    )?;
    redis.set(
        "sha1hex",
        lua.create_function(|_, text: LuaString| {
            Ok(Sha1::from(text.as_bytes()).digest().to_string())
        })?,
    )?;
    globals.set("redis", &redis)?;
    lua.set_globals(lua.load(PROTECT).call(&globals)?)?;
    Ok(Engine {
        lua,
        globals,
        redis,
    })
}

/// Returns an argument of `redis.call` as the word of a command.
fn word(value: &Value) -> Result<Vec<u8>, Refusal> {
    match value {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Integer(number) => Ok(number.to_string().into_bytes()),
        Value::Number(number) => Ok(score_text(*number).into_bytes()),
        _ => Err(Refusal::new(
            "ERR Lua redis lib command arguments must be strings or integers",
        )),
    }
}

fn texts(lua: &Lua, words: Args<'_>) -> mlua::Result<Table> {
    lua.create_sequence_from(
        words
            .iter()
            .map(|word| lua.create_string(word))
            .collect::<mlua::Result<Vec<_>>>()?,
    )
}

/// Hands a reply to Lua. Nothing is `false` there, and a status and an error are tables.
fn to_lua(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    let of_one_field = |name: &str, text: &str| {
        let table = lua.create_table()?;
        table.set(name, text)?;
        Ok(Value::Table(table))
    };
    match reply.flat() {
        Reply::Integer(number) => Ok(Value::Number(number as f64)),
        Reply::Bulk(bytes) => lua.create_string(&bytes).map(Value::String),
        Reply::Status(text) => of_one_field("ok", &text),
        Reply::Refusal(Refusal(text)) => of_one_field("err", &text),
        Reply::List(items) => {
            let items = items.into_iter().map(|item| to_lua(lua, item));
            let items = items.collect::<mlua::Result<Vec<_>>>()?;
            lua.create_sequence_from(items).map(Value::Table)
        }
        _ => Ok(Value::Boolean(false)),
    }
}

/// Makes a reply of what a script returned.
fn from_lua(value: Value) -> mlua::Result<Reply> {
    Ok(match value {
        Value::String(text) => Reply::bulk(text.as_bytes().to_vec()),
        Value::Integer(number) => Reply::Integer(number),
        Value::Number(number) => Reply::Integer(whole(number)),
        Value::Boolean(true) => Reply::Integer(1),
        Value::Table(table) => {
            if let Value::String(text) = table.raw_get("err")? {
                return Ok(Reply::Refusal(Refusal(text.to_string_lossy())));
            }
            if let Value::String(text) = table.raw_get("ok")? {
                return Ok(Reply::Status(text.to_string_lossy()));
            }
            let mut items = Vec::new();
            loop {
                match table.raw_get(items.len() + 1)? {
                    Value::Nil => break Reply::List(items),
                    item => items.push(from_lua(item)?),
                }
            }
        }
        _ => Reply::Nil,
    })
}

/// Returns a number without its fraction, as C has it: those that no integer can be are the least one.
fn whole(number: f64) -> i64 {
    match number < i64::MAX as f64 {
        true => number as i64,
        false => i64::MIN,
    }
}

/// Adds to a refusal where in the script it was met.
fn located(lua: &Lua, Refusal(text): Refusal, sha: &str) -> Refusal {
    let line = lua.inspect_stack(1, |at| at.current_line()).flatten();
    let line = line.unwrap_or_default();
    Refusal(format!("{text} script: {sha}, on @user_script:{line}."))
}

/// Builds the refusal of a script that did not come to its end.
fn refused(error: &mlua::Error, sha: &str) -> Refusal {
    if let Some(refusal) = error.downcast_ref::<Refusal>() {
        return refusal.clone();
    }
    let text = match error {
        mlua::Error::RuntimeError(text) => text.clone(),
        other => other.to_string(),
    };
    let text = text.lines().next().unwrap_or_default();
    Refusal(format!("ERR {text} script: {sha}, on @user_script."))
}
