-- cron_faults returns what is wrong with a cron expression, in the same words as package schedule, which finally reads
-- it; NULL if nothing is. A test compares the two. Of the days that never come it finds those that the months lack,
-- such as 30 February; schedulers report the others (such as the second Monday among the first days) in their logs.
CREATE OR REPLACE FUNCTION outbox.cron_faults(expression text) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    fields CONSTANT text[] := '{minute,hour,day-of-month,month,day-of-week}';
    least  CONSTANT integer[] := '{0,0,1,1,0}';
    most   CONSTANT integer[] := '{59,23,31,12,7}';
    months CONSTANT text[] := '{JAN,FEB,MAR,APR,MAY,JUN,JUL,AUG,SEP,OCT,NOV,DEC}';
    days   CONSTANT text[] := '{SUN,MON,TUE,WED,THU,FRI,SAT}';
    named  text[];
    texts  text[];
    part   text;
    span   text;
    step   text;
    ends   text[];
    bounds integer[];
    fault  text;
    faults text[] := '{}';
    chosen integer[];            -- values of the field
    dated  integer[];            -- days of the month
BEGIN
    IF expression = ANY ('{@yearly,@monthly,@weekly,@daily,@hourly}') THEN
        RETURN NULL;
    ELSIF octet_length(expression) > 500 THEN
        RETURN format('expression is %s bytes long, want at most 500', octet_length(expression));
    END IF;
    texts := regexp_split_to_array(btrim(upper(expression), E' \t\n\v\f\r'), '\s+');
    IF cardinality(texts) <> 5 THEN
        RETURN format('expression is %s, want five fields: minute, hour, day of month, month, day of week;'
            ' or one of @hourly, @daily, @weekly, @monthly, @yearly', to_json(expression));
    END IF;
    FOR i IN 1..5 LOOP
        named := CASE i WHEN 4 THEN months WHEN 5 THEN days ELSE '{}' END;
        fault := NULL;
        chosen := '{}';
        FOREACH part IN ARRAY string_to_array(texts[i], ',') LOOP
            EXIT WHEN fault IS NOT NULL;
            -- L, the last day of the month; 15W, the weekday nearest to the 15th; 5L, the last Friday; 5#2, the 2nd.
            IF i = 3 AND (part = 'L' OR part ~ '^0*([1-9]|[12][0-9]|3[01])W$')
                OR i = 5 AND part ~ '^(0*[0-7]|SUN|MON|TUE|WED|THU|FRI|SAT)(L|#[1-5])$' THEN
                chosen := NULL; -- such a day comes
                CONTINUE;
            END IF;
            span := split_part(part, '/', 1);
            step := CASE WHEN part LIKE '%/%' THEN substr(part, length(span) + 2) END;
            IF step IS NOT NULL AND (step !~ '^[0-9]{1,9}$' OR step::integer NOT BETWEEN 1 AND most[i]) THEN
                fault := format('the step %s is not a number from 1 to %s', to_json(step), most[i]);
                CONTINUE;
            ELSIF span = '*' THEN
                IF step IS NULL AND texts[i] <> '*' THEN
                    fault := '* and others exclude each other';
                END IF;
                bounds := ARRAY[least[i], most[i]];
            ELSE
                ends := CASE WHEN span LIKE '%-%' THEN ARRAY[split_part(span, '-', 1), substr(span, strpos(span, '-') + 1)] ELSE ARRAY[span] END;
                bounds := '{}';
                FOR n IN 1..cardinality(ends) LOOP
                    IF ends[n] = ANY (named) THEN
                        bounds := bounds || (least[i] + array_position(named, ends[n]) - 1);
                    ELSIF ends[n] ~ '^[0-9]{1,9}$' AND ends[n]::integer BETWEEN least[i] AND most[i] THEN
                        bounds := bounds || ends[n]::integer;
                    ELSE
                        fault := format('%s is not a number from %s to %s', to_json(ends[n]), least[i], most[i])
                            || coalesce(' nor one of ' || nullif(array_to_string(named, ' '), ''), '');
                        EXIT;
                    END IF;
                END LOOP;
                IF fault IS NULL AND bounds[2] < bounds[1] THEN
                    fault := format('the range %s begins after its end', span);
                ELSIF cardinality(bounds) = 1 THEN
                    bounds := bounds || CASE WHEN step IS NULL THEN bounds[1] ELSE most[i] END;
                END IF;
            END IF;
            IF fault IS NULL THEN
                chosen := chosen || ARRAY(SELECT generate_series(bounds[1], bounds[2], coalesce(step::integer, 1)));
            END IF;
        END LOOP;
        IF fault IS NOT NULL THEN
            faults := faults || format('expression.%s is %s: %s', fields[i], to_json(texts[i]), fault);
        ELSIF i = 3 THEN
            dated := chosen;
        ELSIF i = 4 AND texts[5] = '*' AND NOT EXISTS (
            SELECT FROM unnest(dated) AS day, unnest(chosen) AS month
            WHERE day <= CASE WHEN month = 2 THEN 29 WHEN month IN (4, 6, 9, 11) THEN 30 ELSE 31 END)
       AND dated IS NOT NULL AND cardinality(faults) = 0 THEN
            faults := faults || format('expression is %s, which never comes', to_json(expression));
        END IF;
    END LOOP;
    RETURN nullif(array_to_string(faults, '; '), '');
END
$$;
