#include "queue/turns.h"

namespace openreg::turns {

// Constants, as schedule.cpp may replace them before or after this file's objects are made.
constinit TurnFunctions functions{
    .begin = [] {},
    .add = [](Stream&, uint64_t, Command&) {},
    .let_run = [](Stream&, uint64_t, bool) {},
    .end_wait = [] {},
    .take_turn = [](Stream&, uint64_t) {},
    .end_turn = [](Stream&) {},
    .stop = [] {},
};

constinit std::atomic<bool> is_on_now{false};

}  // namespace openreg::turns
