// Calls of the write manager's internal API.
//
// site-http.conf names:   $write_manager_internal  host:port
// site-secret.conf names: $cluster_secret

const ADDRESS = /^[A-Za-z0-9._\-\[\]:]+:[0-9]{1,5}$/;

// The parsed answer; undefined when there is none.
async function fetchJson(session, path) {
    try {
        const answer = await ngx.fetch(`http://${session.variables.write_manager_internal}${path}`, {
            headers: {'X-Myqueue-Secret': session.variables.cluster_secret},
        });
        return answer.status === 200 ? await answer.json() : undefined;
    } catch (error) {
        return undefined;
    }
}

// Checked because it becomes an argument of proxy_pass.
function isAddress(text) {
    return ADDRESS.test(text);
}

export default {fetchJson, isAddress};
