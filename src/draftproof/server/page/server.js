// Requests to the served model: its streams, its statistics, and its errors in plain words.

export class Refusal extends Error {
  constructor(message, status, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export class Server {
  key = "";

  #headers() {
    return this.key ? { Authorization: `Bearer ${this.key}` } : {};
  }

  /** `GET /stats`. */
  async stats() {
    const answer = await reach("stats", { headers: this.#headers() });
    return answer.json();
  }

  /** The chunks of a chat completion, as they come. */
  async *stream(body, signal) {
    const answer = await reach("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...this.#headers() },
      body: JSON.stringify({ ...body, stream: true, include_rounds: true }),
      signal,
    });
    for await (const data of events(answer.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Refusal(chunk.error.message ?? "The server failed.", 500);
      yield chunk;
    }
    throw ended();
  }
}

async function reach(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The server cannot be reached. Is it still running?", 0);
  }
  if (answer.ok) return answer;
  const { error } = (await answer.json().catch(() => null)) ?? {};
  throw new Refusal(reason(answer, error), answer.status, error?.code);
}

function reason(answer, error) {
  if (answer.status === 401) return "This server asks for an API key: enter it in the settings.";
  if (answer.status === 429) {
    const wait = answer.headers.get("Retry-After");
    return `The server is busy. Try again ${wait ? `in ${wait} s` : "in a moment"}.`;
  }
  if (answer.status === 503) return "The server is shutting down and takes no more requests.";
  return error?.message ?? `The server answered with ${answer.status}.`;
}

const ended = () => new Refusal("The connection ended before the answer did.", 0);

/** The data of server-sent events. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) yield line.slice(5).trimStart();
      }
    }
  } catch (error) {
    throw error.name === "AbortError" ? error : ended();
  } finally {
    reader.cancel().catch(() => {}); // the connection may be gone already
  }
}
