#include <cstdint>
#include <cstdlib>
#include <cstring>

constexpr uint32_t NONE = UINT32_MAX;
constexpr uint32_t SIZE = 12;

struct Handle {
    uint32_t slot, gen;
};
struct Item {
    uint32_t slot, payload;
};
struct Slot {
    uint32_t index, gen;
};

class SlotMap {
public:
    SlotMap()
    {
        for (uint32_t i = 0; i < SIZE; i++)
            slots_[i] = {i + 1 < SIZE ? i + 1 : NONE, 0};
    }
    ~SlotMap()
    {
        delete[] dense_;
        delete[] slots_;
    }
    SlotMap(const SlotMap &) = delete;
    SlotMap &operator=(const SlotMap &) = delete;
    Handle add(uint32_t payload);
    bool erase(Handle h);
    bool sound() const;
    const Item *find(Handle h) const
    {
        return slots_[h.slot].gen == h.gen ? &dense_[slots_[h.slot].index] : nullptr;
    }
    uint32_t count_ = 0;

private:
    uint32_t nslots_ = SIZE, free_ = 0;
    Item *dense_ = new Item[SIZE]();
    Slot *slots_ = new Slot[SIZE];
};

Handle SlotMap::add(uint32_t payload)
{
    const uint32_t slot = free_;
    if (slot >= nslots_ || count_ >= SIZE)
        exit(77); // the caller has seen that there is room, so the list must have a slot
    free_ = slots_[slot].index;
    slots_[slot].index = count_;
    dense_[count_++] = {slot, payload};
    return {slot, slots_[slot].gen};
}

// Every slot is either live and linked both ways, or exactly once in the free list.
bool SlotMap::sound() const
{
    bool seen[SIZE] = {};
    for (uint32_t i = 0; i < count_; i++) {
        const uint32_t slot = dense_[i].slot;
        if (slot >= nslots_ || seen[slot] || slots_[slot].index != i)
            return false;
        seen[slot] = true;
    }
    uint32_t idle = 0;
    for (uint32_t slot = free_; slot != NONE; slot = slots_[slot].index, idle++) {
        if (slot >= nslots_ || seen[slot])
            return false;
        seen[slot] = true;
    }
    return idle + count_ == nslots_;
}

//@FUNCTION@

static uint64_t state;

static uint32_t rnd()
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 33);
}

int main(int argc, char **argv)
{
    if (argc > 3 && strcmp(argv[1], "fuzz") == 0) {
        state = strtoull(argv[3], nullptr, 10);
        for (long i = strtol(argv[2], nullptr, 10); i > 0; i -= 40) {
            SlotMap map;
            Handle given[40];
            bool live[40];
            uint32_t n = 0, alive = 0;
            for (int k = 0; k < 40; k++) {
                if (alive < SIZE && (n == 0 || rnd() % 2)) {
                    given[n] = map.add(n);
                    live[n++] = true;
                    alive++;
                } else {
                    const uint32_t j = rnd() % n;
                    if (map.erase(given[j]) != live[j])
                        return 77;
                    alive -= live[j];
                    live[j] = false;
                }
                if (!map.sound() || map.count_ != alive)
                    return 77;
                for (uint32_t j = 0; j < n; j++) {
                    const Item *item = map.find(given[j]);
                    if ((item != nullptr) != live[j] || (item != nullptr && item->payload != j))
                        return 77;
                }
            }
        }
        return 0;
    }
    SlotMap map;
    const Handle a = map.add(1), b = map.add(2), c = map.add(3);
    if (!map.erase(a) || !map.sound() || map.erase(a))
        return 77;
    return map.erase(b) && map.sound() && map.erase(c) && map.sound() ? 0 : 77;
}
