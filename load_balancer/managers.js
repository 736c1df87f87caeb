// The read managers: those in the configuration, and those that send heartbeats to the write manager. Its list is fetched
// every second, so that adding or removing one needs no reload; while no write manager is active, the last known list
// stays.
//
// site-http.conf names:  $read_managers  "pool=host:port pool=host:port …" of those with an upstream of that name

import writeManagers from 'write_managers.js';

const ADDRESSES = 'addresses';   // one entry for all: readers see one answer of the write manager, never a mix of two

function words(text) {
    return text.split(' ').filter((word) => word !== '');
}

async function refresh(session) {
    const answer = await writeManagers.fetchJson(session, '/internal/managers');
    if (answer === undefined || !Array.isArray(answer.managers)) {
        return;
    }
    const addresses = answer.managers
        .map((manager) => String(manager.endpoint).replace(/^http:\/\//, ''))
        .filter(writeManagers.isAddress)
        .join(' ');
    const dict = ngx.shared.managers;
    if (dict.get(ADDRESSES) !== addresses) {
        ngx.log(ngx.WARN, `managers: reads go to ${addresses || 'no manager that the write manager knows'}`);
        dict.set(ADDRESSES, addresses);
    }
}

function declared(variables) {
    return words(variables.read_managers).map((word) => {
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

export default {refresh, all};
