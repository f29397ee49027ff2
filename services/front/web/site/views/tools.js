// Every operation as a form, mounted ones too, with its result and trace; and the surfaces with their cost.
import { html, useMemo, useState } from "../lib.js";
import { operations, traced } from "../api.js";
import { Facts, Failure, Json, Loaded, Nothing, Select, Table, Tabs, Title, go, number, plural, useWork } from "../ui.js";

export const title = "Tools";
export const order = 80;

export function View({ parts, parameters }) {
  const work = useWork(operations, []);
  const [name] = parts;
  if (name && name !== "surfaces")
    return html`<${Loaded} work=${work}>${(found) => html`<${Operation} key=${name} operation=${found.operations.find((each) => each.name === name)} name=${name} />`}<//>
      ${work.value === undefined && html`<${Title}>Tools<//>`}`;
  return html`<${Title}>Tools<//><${Tabs} label="Parts of the tools" current=${name ? "#/tools/surfaces" : "#/tools"} tabs=${[["#/tools", "Operations"], ["#/tools/surfaces", "Surfaces"]]} />
    <${Loaded} work=${work}>${(found) => (name ? html`<${Surfaces} surfaces=${found.surfaces} />` : html`<${Operations} all=${found.operations} ...${parameters} />`)}<//>`;
}

function Operations({ all, service = "", access = "", words = "" }) {
  const set = (more) => go("/tools", { service, access, words, ...more });
  const services = [...new Set(all.map((each) => each.service))].sort();
  const rows = all.filter((each) => (!service || each.service === service) && (!access || each.access === access)
    && words.toLowerCase().split(/\s+/).every((word) => `${each.name} ${each.description}`.toLowerCase().includes(word)));
  return html`<div class="row">
      <input class="grow" type="search" aria-label="Words" placeholder="Words" value=${words} onInput=${(event) => set({ words: event.target.value })} />
      <${Select} label="Service" value=${service} options=${[["", "all"], ...services.map((each) => [each, each])]} onChange=${(value) => set({ service: value })} />
      <${Select} label="Access" value=${access} options=${[["", "all"], ["read", "read"], ["write", "write"], ["destructive", "destructive"]]} onChange=${(value) => set({ access: value })} /></div>
    <p class="quiet">${plural(rows.length, "operation")}.</p>
    <${Table} caption="Operations" rows=${rows} keyOf=${(row) => row.name} sort="name" empty="No operation fits." columns=${[
      { key: "name", title: "Name", cell: (row) => html`<a href=${`#/tools/${encodeURIComponent(row.name)}`}>${row.name}</a>${row.mounted && html`${" "}<span class="badge">mounted</span>`}` },
      { key: "service", title: "Service", wide: true }, { key: "access", title: "Access", cell: (row) => html`<span class=${{ write: "busy", destructive: "bad" }[row.access]}>${row.access}</span>` },
      { key: "description", title: "What it does", wide: true, cell: (row) => row.description.split("\n\n")[0].slice(0, 200) }]} />`;
}

const Surfaces = ({ surfaces }) => html`<p>A client sees the tools of one surface. Their list costs a model about this many tokens in each conversation.</p>
  <${Table} caption="Surfaces" rows=${surfaces} keyOf=${(row) => row.name} columns=${[{ key: "name", title: "Surface" }, { key: "tools", title: "Tools", right: true, cell: (row) => number(row.tools) },
    { key: "tokens", title: "Tokens, about", right: true, cell: (row) => number(row.tokens) }, { key: "url", title: "Path", cell: (row) => html`<code>/mcp/${row.name}</code>` }]} />`;

function Operation({ operation, name }) {
  if (!operation) return html`<p><a href="#/tools">Tools</a></p><${Title}>${name}<//><${Nothing}>There is no such operation, or your token does not allow it.<//>`;
  return html`<p><a href="#/tools">Tools</a></p><${Title}>${operation.title || name}<//>
    <p class="text">${operation.description}</p>
    <${Facts} facts=${{ name: html`<code>${name}</code>`, service: operation.service, access: operation.access, repeatable: operation.idempotent ? "yes" : "no", surfaces: operation.surfaces.join(", ") || "all" }} />
    <${Form} operation=${operation} />
    <details><summary>Schema</summary><${Json} value=${operation.schema} /></details>`;
}

// The type of a parameter, through references and "or null".
function typeOf(schema, root) {
  if (schema.$ref) return { ...typeOf(root.$defs?.[schema.$ref.split("/").pop()] || {}, root), ...(schema.description && { description: schema.description }) };
  const choices = (schema.anyOf || schema.oneOf)?.filter((each) => each.type !== "null");
  if (choices?.length === 1) return { ...typeOf(choices[0], root), ...(schema.description && { description: schema.description }) };
  return choices ? { ...schema, type: "json" } : schema;
}

function Form({ operation }) {
  const { properties = {}, required = [] } = operation.schema;
  const fields = useMemo(() => Object.entries(properties).map(([name, schema]) => ({ name, required: required.includes(name), ...typeOf(schema, operation.schema), standard: schema.default })), [operation]);
  const [values, setValues] = useState({});
  const [state, setState] = useState({});
  const change = (name) => (value) => setValues((before) => ({ ...before, [name]: value }));
  async function submit(event) {
    event.preventDefault();
    const parameters = {};
    for (const field of fields) {
      const text = values[field.name];
      if (text === undefined || text === "") continue;
      try {
        parameters[field.name] = read(field, text);
      } catch (error) {
        setState({ error: new Error(`${field.name}: ${error.message}`) });
        return;
      }
    }
    if (operation.access === "destructive" && !confirm(`${operation.name} may irreversibly remove or overwrite data. Call it?`)) return;
    setState({ busy: true });
    const began = performance.now();
    try {
      setState({ ...(await traced(operation.name, parameters)), tookMs: performance.now() - began });
    } catch (error) {
      setState({ error });
    }
  }
  return html`<h2>Call it</h2><form class="fields" onSubmit=${submit}>
    ${fields.map((field) => html`<label key=${field.name}><span><code>${field.name}</code>${field.required && " (required)"}</span>
      <${Field} field=${field} value=${values[field.name]} onChange=${change(field.name)} />
      ${field.description && html`<span class="hint">${field.description}</span>`}</label>`)}
    ${!fields.length && html`<${Nothing}>It has no parameters.<//>`}
    <div><button class="main" disabled=${state.busy}>${state.busy ? "Calling…" : "Call"}</button></div></form>
    <div role="status">${state.error && html`<${Failure} error=${state.error} />`}
    ${state.result !== undefined && html`<h2>Result</h2><p class="quiet">${state.tookMs.toFixed(0)} ms${state.trace && html`, <a href=${`#/calls/${state.trace}`}>trace</a>`}</p><${Json} value=${state.result} />`}</div>`;
}

function Field({ field, value = "", onChange }) {
  const common = { value, required: field.required, onInput: (event) => onChange(event.target.value) };
  const hint = field.standard !== undefined && field.standard !== null ? JSON.stringify(field.standard) : "";
  if (field.enum) return html`<select ...${common}><option value="">${hint && `default: ${hint}`}</option>${field.enum.filter((each) => each !== null).map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select>`;
  if (field.type === "boolean") return html`<select ...${common}><option value="">${hint ? `default: ${hint}` : "not given"}</option><option value="true">true</option><option value="false">false</option></select>`;
  if (field.type === "integer" || field.type === "number") return html`<input type="number" step=${field.type === "integer" ? 1 : "any"} min=${field.minimum} max=${field.maximum} placeholder=${hint} ...${common} />`;
  if (field.type === "array" || field.type === "object" || field.type === "json" || (!field.type && !field.enum))
    return html`<textarea placeholder=${field.type === "array" ? "one per line, or JSON" : "JSON"} ...${common}></textarea>`;
  return (field.maxLength || 0) > 2000 ? html`<textarea placeholder=${hint} ...${common}></textarea>` : html`<input placeholder=${hint} ...${common} />`;
}

function read(field, text) {
  if (field.type === "boolean") return text === "true";
  if (field.type === "integer" || field.type === "number") return Number(text);
  if (field.type === "array" && !/^\s*\[/.test(text)) return text.split("\n").map((each) => each.trim()).filter(Boolean);
  if (["array", "object", "json"].includes(field.type) || (!field.type && !field.enum)) return JSON.parse(text);
  return text;
}
