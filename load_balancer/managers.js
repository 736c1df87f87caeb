// The managers: those in the configuration, and the read managers that send heartbeats to the write manager. Its list is
// fetched every second, so that adding or removing one needs no reload; while the write manager is unavailable, the last
// known list stays.
//
// site-http.conf names:  $managers    "pool=host:port pool=host:port …" of every manager with an upstream of that name
//                        $read_pools  "pool pool …" of the read managers among them

import writeManager from 'write_manager.js';

const ADDRESSES = 'addresses';   // one entry for all: readers see one answer of the write manager, never a mix of two

function words(text) {
    return text.split(' ').filter((word) => word !== '');
}

async function refresh(session) {
    const answer = await writeManager.fetchJson(session, '/internal/managers');
    if (answer === undefined || !Array.isArray(answer.managers)) {
        return;
    }
    const addresses = answer.managers
        .map((manager) => String(manager.endpoint).replace(/^http:\/\//, ''))
        .filter(writeManager.isAddress)
        .join(' ');
    const dict = ngx.shared.managers;
    if (dict.get(ADDRESSES) !== addresses) {
        ngx.log(ngx.WARN, `managers: reads go to ${addresses || 'no manager that the write manager knows'}`);
        dict.set(ADDRESSES, addresses);
    }
}

function declared(variables) {
    return words(variables.managers).map((word) => {
        const parts = word.split('=');
        return {pool: parts[0], address: parts[1], followed: false};
    });
}

// `pool` is the argument of proxy_pass: the name of a configured upstream, which keeps connections alive, or an address.
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
