//! Channels: who listens, and what is published.

use crate::argument::{Args, matches, upper};
use crate::connection::Connection;
use crate::data::Data;
use crate::reply::{Answer, Refusal, Reply};

/// `PUBLISH channel message`
pub(crate) fn publish(data: &mut Data, args: Args<'_>) -> Answer {
    deliver(data, args, 0, "message")
}

/// `SPUBLISH channel message`
pub(crate) fn spublish(data: &mut Data, args: Args<'_>) -> Answer {
    deliver(data, args, 1, "smessage")
}

fn deliver(data: &mut Data, args: Args<'_>, sort: usize, word: &str) -> Answer {
    let listeners = data.connections.iter();
    let listeners: Vec<_> = listeners
        .filter(|(_, connection)| connection.channels[sort].contains(&args[0]))
        .map(|(id, _)| *id)
        .collect();
    for id in &listeners {
        let parts = [word.as_bytes(), &args[0], &args[1]].map(Reply::bulk);
        data.send(*id, Reply::Push(parts.into()));
    }
    if data.watcher.is_some() {
        data.told
            .push((args[0].clone(), args[1].clone(), listeners.len()));
    }
    Ok(Reply::count(listeners.len()))
}

/// `PUBSUB CHANNELS|SHARDCHANNELS [pattern]` and `PUBSUB NUMSUB|SHARDNUMSUB channel..`
pub(crate) fn pubsub(data: &mut Data, args: Args<'_>) -> Answer {
    let word = upper(&args[0]);
    let sort = usize::from(word.starts_with("SHARD"));
    match &*word {
        "CHANNELS" | "SHARDCHANNELS" => {
            let pattern = args.get(1).map_or(&b"*"[..], Vec::as_slice);
            let listeners = data.connections.values();
            let mut found: Vec<_> = listeners
                .flat_map(|connection| &connection.channels[sort])
                .filter(|channel| matches(pattern, channel))
                .cloned()
                .collect();
            found.sort();
            found.dedup();
            Ok(Reply::bulks(found))
        }
        "NUMSUB" | "SHARDNUMSUB" => {
            let count = |channel: &Vec<u8>| {
                let listeners = data.connections.values();
                let listeners = listeners.filter(|one| one.channels[sort].contains(channel));
                Reply::count(listeners.count())
            };
            let counts = args[1..].iter();
            let counts = counts.flat_map(|channel| [Reply::bulk(channel.clone()), count(channel)]);
            Ok(Reply::List(counts.collect()))
        }
        word => {
            let text = format!("ERR unknown subcommand '{word}'. Try PUBSUB HELP.");
            Err(Refusal::new(text))
        }
    }
}

/// Carries out `SUBSCRIBE`, `SSUBSCRIBE`, `UNSUBSCRIBE` and `SUNSUBSCRIBE`, which answer once for each channel.
pub(crate) fn subscribe(connection: &mut Connection, command: &str, args: Args<'_>) -> Vec<Reply> {
    let is_sharded = command.starts_with('S') && command != "SUBSCRIBE";
    let adds = command.ends_with("SUBSCRIBE") && !command.ends_with("UNSUBSCRIBE");
    let channels = &mut connection.channels[usize::from(is_sharded)];
    // Without an argument all channels are left.
    let named = match args.is_empty() {
        true => channels.iter().cloned().collect(),
        false => args.to_vec(),
    };
    let mut told = Vec::new();
    for channel in named {
        let parts = [command.to_lowercase().into_bytes(), channel.clone()];
        match adds {
            true => channels.insert(channel),
            false => channels.remove(&channel),
        };
        let [word, channel] = parts.map(Reply::bulk);
        told.push(Reply::Push(vec![
            word,
            channel,
            Reply::count(channels.len()),
        ]));
    }
    if told.is_empty() {
        let word = Reply::bulk(command.to_lowercase());
        told.push(Reply::Push(vec![word, Reply::Nil, Reply::Integer(0)]));
    }
    told
}
