// Which managers there are: those that the configuration declares, and the read managers that send heartbeats to the
// write manager. It is asked every second, so that one more, or one less, needs no reload; while it is away the last
// known ones stay.
//
// site-http.conf names:  $managers    "pool=host:port pool=host:port …" of every manager with an upstream of that name
//                        $read_pools  "pool pool …" of the read managers among them

import internal from 'internal.js';

const ADDRESSES = 'addresses';   // one entry for all: who reads it sees one answer of the write manager, never a mix

function words(text) {
    return text.split(' ').filter((word) => word !== '');
}

async function refresh(session) {
    const answer = await internal.told(session, '/internal/managers');
    if (answer === undefined || !Array.isArray(answer.managers)) {
        return;
    }
    const addresses = answer.managers
        .map((manager) => String(manager.endpoint).replace(/^http:\/\//, ''))
        .filter(internal.isAddress)
        .join(' ');
    const dict = ngx.shared.managers;
    if (dict.get(ADDRESSES) !== addresses) {
        ngx.log(ngx.WARN, `managers: reads go to ${addresses || 'nobody that the write manager knows'}`);
        dict.set(ADDRESSES, addresses);
    }
}

function declared(variables) {
    return words(variables.managers).map((word) => {
        const parts = word.split('=');
        return {pool: parts[0], address: parts[1], followed: false};
    });
}

// `pool` is what proxy_pass gets: the name of a declared upstream, whose connections are kept, or a bare address.
function all(variables) {
    const known = declared(variables);
    const addresses = known.map((manager) => manager.address);
    return known.concat(words(ngx.shared.managers.get(ADDRESSES) || '')
        .filter((address) => !addresses.includes(address))
        .map((address) => ({pool: address, address, followed: true})));
}

function readers(variables) {
    const pools = words(variables.read_pools);
    return all(variables).filter((manager) => manager.followed || pools.includes(manager.pool));
}

export default {refresh, all, readers};
