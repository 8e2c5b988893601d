-- nginx_load.lua: what wrk asks nginx for, and what it counts of the answers.
--
-- Who may call it: nginx.sh, through `wrk -t 1 -s`. It asks for the paths below in turn, counts the answers by status
-- and length, and ends wrk after $ANSWERS of them: wrk itself knows only a time, and a fixed amount of work is wanted.
-- An answer that is cut short or too long shows as a length that no other run has.
--
-- SPDX-License-Identifier: Apache-2.0
local ffi = require("ffi")
ffi.cdef("int kill(int pid, int signal); int getpid(void);")
local SIGINT = 2
local PATHS = { "/page.txt", "/zip/page.txt", "/included.shtml", "/sub/page.txt", "/proxy/page.txt", "/part3.txt", "/cached/page.txt",
    "/proxy/included.shtml" }

local the_thread
function setup(thread)
    the_thread = thread
end

-- Globals of the thread's own state: `done` runs in another and reads them through the thread.
function init()
    wanted, answers, seen, next_path = tonumber(os.getenv("ANSWERS")), 0, {}, 0
end

function request()
    next_path = next_path % #PATHS + 1
    return wrk.format("GET", PATHS[next_path], { ["Accept-Encoding"] = "gzip" })
end

function response(status, _, body)
    answers = answers + 1
    seen[status .. " " .. #body] = true
    if answers == wanted then
        list = ""
        local keys = {}
        for key in pairs(seen) do table.insert(keys, key) end
        table.sort(keys)
        list = table.concat(keys, ", ")
        wrk.thread:stop()
        ffi.C.kill(ffi.C.getpid(), SIGINT)
    end
end

function done(summary)
    local errors = summary.errors
    print(string.format("answers: %d", the_thread:get("wanted")))
    print("status and length: " .. tostring(the_thread:get("list")))
    print(string.format("errors: %d", errors.connect + errors.read + errors.write + errors.timeout))
end
