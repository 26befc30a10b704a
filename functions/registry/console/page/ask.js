// Requests to the registry with the operator's token, which is only stored in this tab's sessionStorage and only sent to
// this origin. `NotLetIn` leads back to the sign-in; the message of any other `Refused` is shown in the part concerned.

const TOKEN = "shoal-operator-token";
const ANSWER_MS = 20000;
const AWAY = "The registry does not answer. The page shows the last data received.";

export class Refused extends Error {}
export class NotLetIn extends Refused {}

export const isInside = () => sessionStorage.getItem(TOKEN) !== null;
export const keepToken = (token) => sessionStorage.setItem(TOKEN, token);
export const forgetToken = () => sessionStorage.removeItem(TOKEN);

export async function ask(path, options = {}) {
  const headers = { authorization: `Bearer ${sessionStorage.getItem(TOKEN)}`, ...options.headers };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, redirect: "error", credentials: "omit", signal: AbortSignal.timeout(ANSWER_MS) });
  } catch {
    throw new Refused(AWAY);
  }
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  const words = (body.error && body.error.message) || `HTTP ${answer.status}`;
  throw answer.status === 401 || answer.status === 403 ? new NotLetIn(words) : new Refused(words);
}

// Add the parameters that are not empty to the path.
export function withParams(path, params) {
  const given = Object.entries(params).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}
