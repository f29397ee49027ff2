// Preact with htm: the names that the other modules use.
import { Fragment, createContext, h, render } from "./lib/preact.mjs";
import htm from "./lib/htm.mjs";

export { useCallback, useContext, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "./lib/hooks.mjs";
export { Fragment, createContext, render };
export const html = htm.bind(h);
