// What the write manager tells on its internal listener.
//
// site-http.conf names:   $write_manager_internal  host:port
// site-secret.conf names: $cluster_secret

const ADDRESS = /^[A-Za-z0-9._\-\[\]:]+:[0-9]{1,5}$/;

// The parsed answer; undefined when there is none.
async function told(session, path) {
    try {
        const answer = await ngx.fetch(`http://${session.variables.write_manager_internal}${path}`, {
            headers: {'X-Myqueue-Secret': session.variables.cluster_secret},
        });
        return answer.status === 200 ? await answer.json() : undefined;
    } catch (error) {
        return undefined;
    }
}

// It becomes part of proxy_pass: nothing else may get there.
function isAddress(text) {
    return ADDRESS.test(text);
}

export default {told, isAddress};
