// A real authorization server for tests: `node issuer.mjs PORT`, with npm's `oidc-provider` in NODE_MODULES. Each login
// is granted at once. It registers no clients by itself: it knows `registered` (with the secret `hush-hush`) and `public`,
// and, if DOCUMENT is set, the client whose document is at that address. TTL is the life of access tokens in seconds.
// GET /fetched lists the documents that it has read, and /asked the paths of all requests.
import http from 'node:http';
import { pathToFileURL } from 'node:url';

const { default: Provider } = await import(pathToFileURL(process.env.NODE_MODULES + '/oidc-provider/lib/index.js').href);
const port = Number(process.argv[2]);
const issuer = process.env.ISSUER || `http://127.0.0.1:${port}`;
const address = process.env.DOCUMENT;
const native = {
  application_type: 'native', grant_types: ['authorization_code', 'refresh_token'], response_types: ['code'],
};
const redirects = JSON.parse(process.env.REDIRECTS || '["http://127.0.0.1/callback"]');
const fetched = [];
const asked = [];
const provider = new Provider(issuer, {
  clients: [
    { ...native, client_id: 'registered', client_secret: 'hush-hush', redirect_uris: redirects,
      token_endpoint_auth_method: process.env.METHOD || 'client_secret_basic' },
    { ...native, client_id: 'public', redirect_uris: redirects, token_endpoint_auth_method: 'none' },
    { client_id: 'resource', client_secret: 'resource', redirect_uris: [], grant_types: [], response_types: [] },
  ],
  clientAuthMethods: process.env.METHOD ? [process.env.METHOD, 'none', 'client_secret_basic'] : undefined,
  pkce: { required: () => true },
  cookies: { keys: ['a'] },
  issueRefreshToken: () => true,
  ttl: { AccessToken: () => Number(process.env.TTL || 3600) },
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  async fetch(url, options) {
    fetched.push(String(url));
    const body = { ...native, client_id: address, client_name: 'Linckia', redirect_uris: redirects,
      token_endpoint_auth_method: 'none' };
    return new Response(JSON.stringify(body), { headers: { 'content-type': 'application/json' } });
  },
  features: {
    devInteractions: { enabled: false },
    introspection: { enabled: true, allowedPolicy: () => true },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, resource) => ({ scope: 'read', audience: resource, accessTokenFormat: 'opaque',
        accessTokenTTL: Number(process.env.TTL || 3600) }),
    },
    ...(address ? { clientIdMetadataDocument: { enabled: true, ack: 'draft-02' } } : {}),
  },
});

async function interact(request, response) {
  const { prompt, params, session, grantId } = await provider.interactionDetails(request, response);
  if (prompt.name === 'login') {
    return provider.interactionFinished(request, response, { login: { accountId: 'person' } });
  }
  const grant = grantId ? await provider.Grant.find(grantId)
    : new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  grant.addOIDCScope('openid offline_access');
  if (params.resource) grant.addResourceScope(params.resource, 'read');
  return provider.interactionFinished(request, response, { consent: { grantId: await grant.save() } },
    { mergeWithLastSubmission: true });
}

const callback = provider.callback();
http.createServer((request, response) => {
  if (request.url === '/fetched' || request.url === '/asked') {
    response.end(JSON.stringify(request.url === '/asked' ? asked : fetched));
    return;
  }
  asked.push(request.url.split('?')[0]);
  if (request.url.startsWith('/interaction/')) {
    interact(request, response).catch((error) => { response.statusCode = 500; response.end(String(error.stack)); });
  } else {
    callback(request, response);
  }
}).listen(port, '127.0.0.1');
