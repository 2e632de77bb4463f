// A client of the official TypeScript SDK that gets its tokens by itself, and calls with them.
//   node oauth.mjs FOLDER v1|v2|v2-modern URL TOOL < waits.json
// It is authorized, calls the tool, waits as many milliseconds as it is told, and calls it again.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const [folder, sdk, url, tool] = process.argv.slice(2);
const waits = JSON.parse(readFileSync(0, 'utf8'));
const require = createRequire(`${folder}/package.json`);
const from = sdk === 'v1' ? '@modelcontextprotocol/sdk/client' : '@modelcontextprotocol/client';
const { Client } = require(sdk === 'v1' ? `${from}/index.js` : from);
const { StreamableHTTPClientTransport } = require(sdk === 'v1' ? `${from}/streamableHttp.js` : from);
const { UnauthorizedError } = require(sdk === 'v1' ? `${from}/auth.js` : from);

const redirect = 'http://127.0.0.1:9/callback';
const kept = {};
let shown;
const provider = {
  redirectUrl: redirect,
  clientMetadata: {
    client_name: 'typescript-peer',
    redirect_uris: [redirect],
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
    token_endpoint_auth_method: 'none',
  },
  clientInformation: () => kept.client,
  saveClientInformation: (client) => { kept.client = client; },
  tokens: () => kept.tokens,
  saveTokens: (tokens) => { kept.tokens = tokens; },
  codeVerifier: () => kept.verifier,
  saveCodeVerifier: (verifier) => { kept.verifier = verifier; },
  redirectToAuthorization: (where) => { shown = where; },
};

const mode = sdk === 'v2-modern' ? { pin: '2026-07-28' } : 'legacy';
const client = () =>
  new Client({ name: 'typescript-peer', version: '1' }, sdk === 'v1' ? {} : { versionNegotiation: { mode } });
const transport = () => new StreamableHTTPClientTransport(new URL(url), { authProvider: provider });

// The first try ends where a person would have to approve; the browser is played here.
const first = transport();
let refused = '';
try {
  await client().connect(first);
} catch (error) {
  if (!shown) throw error;
  refused = error instanceof UnauthorizedError ? 'UnauthorizedError' : String(error);
}
const approved = await fetch(shown, { redirect: 'manual' });
await first.finishAuth(new URL(approved.headers.get('location')).searchParams.get('code'));

const peer = client();
const way = transport();
await peer.connect(way);
const sessions = [way.sessionId];
const answers = [];
for (const wait of [0, ...waits]) {
  await new Promise((go) => setTimeout(go, wait));
  const result = await peer.callTool({ name: tool, arguments: { message: `after ${wait}` } });
  answers.push(result.content[0].text);
  sessions.push(way.sessionId);
}
console.log(JSON.stringify({ refused, answers, sessions, tokens: kept.tokens }));
await peer.close();
