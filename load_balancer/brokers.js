// Addresses of the brokers: fetched from the write manager every second, so that a broker that joins or moves needs no
// reload. While the write manager is unavailable, the last known addresses stay.
//
// site-http.conf names:  $data_pools  "id=host:port id=host:port …" of brokers with an upstream data_<id>

import upstreamFiles from 'upstream_files.js';
import writeManagers from 'write_managers.js';

const FOLLOWED = 'followed';   // set once the write manager has answered

function known() {
    return ngx.shared.brokers;
}

// id -> host:port
function declared(variables) {
    const addresses = {};
    variables.data_pools.split(' ').filter((word) => word !== '').forEach((word) => {
        const parts = word.split('=');
        addresses[parts[0]] = parts[1];
    });
    return addresses;
}

async function refresh(session) {
    const answer = await writeManagers.fetchJson(session, '/internal/brokers');
    if (answer === undefined || !Array.isArray(answer.brokers)) {
        return;
    }
    const listed = answer.brokers.filter((broker) => writeManagers.isAddress(broker.data_address));
    const dict = known();
    const addresses = {};
    listed.forEach((broker) => {
        addresses[broker.broker_id] = broker.data_address;
    });
    dict.keys().filter((id) => id !== FOLLOWED && addresses[id] === undefined).forEach((id) => dict.delete(id));
    Object.keys(addresses).filter((id) => dict.get(id) !== addresses[id]).forEach((id) => {
        ngx.log(ngx.WARN, `brokers: ${id} is at ${addresses[id]}`);
        dict.set(id, addresses[id]);
    });
    if (dict.get(FOLLOWED) === undefined) {
        dict.set(FOLLOWED, '1');
    }
    const configured = declared(session.variables);
    const inPlace = Object.keys(configured).every((id) => configured[id] === addresses[id]);
    upstreamFiles.setFlag(session.variables, 'brokers', inPlace);
}

// While the broker has its configured address, the name of its upstream, which keeps connections alive; otherwise its
// bare address. Empty: no such broker.
function upstream(r) {
    const id = r.variables.broker_id;
    const dict = known();
    const configured = declared(r.variables)[id];
    const current = dict.get(id);
    if (current !== undefined) {
        return current === configured ? `data_${id}` : current;
    }
    return configured !== undefined && dict.get(FOLLOWED) === undefined ? `data_${id}` : '';
}

// Before the first answer of the write manager, an unknown broker may exist.
function isFollowed() {
    return known().get(FOLLOWED) === '1';
}

export default {refresh, upstream, isFollowed};
