// The client of the operator API. Its types come from the OpenAPI document (`npm run api`).
import createClient, { type Middleware } from "openapi-fetch";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];

/** A refusal of the API, with its message for people. */
export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly code = 0,
  ) {
    super(message);
  }
}

function goToSignIn(): never {
  const here = window.location.pathname + window.location.search;
  window.location.assign(`/login?next=${encodeURIComponent(here)}`);
  throw new ApiError("Sign in to continue.", 401);
}

const refusals: Middleware = {
  async onResponse({ response }) {
    if (response.ok) return response;
    let message = `The gateway answered ${response.status}.`;
    let code = 0;
    try {
      const body = await response.clone().json();
      message = body?.error?.message ?? message;
      code = body?.error?.code ?? 0;
    } catch {
      // A proxy may answer with a page. Its text says nothing to the reader.
    }
    if (response.status === 401) goToSignIn();
    throw new ApiError(sentence(message), response.status, code);
  },
};

function sentence(text: string): string {
  const whole = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(whole) ? whole : `${whole}.`;
}

export const api = createClient<paths>({ baseUrl: window.location.origin, credentials: "same-origin" });
api.use(refusals);

/** Return the data of an answer. The middleware has thrown for every refusal before. */
export async function data<T>(answer: Promise<{ data?: T }>): Promise<T> {
  const { data: found } = await answer;
  if (found === undefined) throw new ApiError("The gateway gave an empty answer.", 0);
  return found;
}
